package slot

import (
	"slices"
	"strings"
	"testing"
)

func TestStandbyNames(t *testing.T) {
	for setting, want := range map[string][]string{
		"":                              nil,
		" \t\n":                         nil,
		"*":                             {"*"},
		"a":                             {"a"},
		"a, B ,c":                       {"a", "B", "c"},
		"2 (a, b)":                      {"a", "b"},
		"1, 2":                          {"1", "2"},
		"2 (1, 2)":                      {"1", "2"},
		"FIRST 1(a)":                    {"a"},
		"first 3 ( s1, \"S 2\" , *)":    {"s1", "S 2", "*"},
		`ANY 2 ("any", "fi""rst", x$1)`: {"any", `fi"rst`, "x$1"},
		`"a,b", "(c)", ""`:              {"a,b", "(c)", ""},
		`"open`:                         {"open"},
		"größe":                         {"größe"},
	} {
		if got := standbyNames(setting); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", setting, got, want)
		}
	}
}

// Whatever the name and the form of the list, the name is found, and only in
// quotes is it safe from being taken for something else.
func FuzzStandbyNames(f *testing.F) {
	for _, name := range []string{"walrelay", "*", "FIRST", `a"b`, "a,b", "(", "", "12", "größe", "\xff"} {
		f.Add(name, "other")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
		list := quote(other) + " , " + quote(name)
		for _, setting := range []string{list, "2(" + list + ")", "FIRST 1 (" + list + ")", "any 1 (" + list + ")"} {
			if got := standbyNames(setting); !slices.Equal(got, []string{other, name}) {
				t.Errorf("%s holds %q, want %q", setting, got, []string{other, name})
			}
			if _, ok := matchStandbyName(setting, asciiLower(name)); !ok {
				t.Errorf("%s does not match %q", setting, name)
			}
		}
		// Anything at all is read to the end.
		standbyNames(name)
		standbyNames(other + name)
	})
}
