package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/stagedoor/walrelay/outbox"
)

// TestUsage plays testdata/usage.txt: each case there is a command line with
// its environment and its settings file, and below it what came of it: the
// settings that are not the defaults, or the message and the exit code. Read
// the difference after -update.
func TestUsage(t *testing.T) {
	const path = "testdata/usage.txt"
	script, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())

	var played []string
	for section := range strings.SplitSeq(strings.TrimRight(string(script), "\n"), "\n\n") {
		c := parseCase(t, section)
		got := c.play(t)
		played = append(played, c.input+got)
		if !*update && c.want != got {
			t.Errorf("%sgot:\n%swant:\n%s", c.input, got, c.want)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(played, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// usageCase is one case of the script.
type usageCase struct {
	input   string // as it stands there, up to the command line
	want    string // what stands below
	args    []string
	environ []string
	files   map[string]string
}

func parseCase(t *testing.T, section string) usageCase {
	t.Helper()
	c := usageCase{environ: []string{"WALRELAY_POSTGRES=host=db"}, files: map[string]string{}}
	file := ""
	for line := range strings.Lines(section + "\n") {
		if c.args != nil {
			c.want += line
			continue
		}
		c.input += line
		text := strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(text, "#"):
		case strings.HasPrefix(text, "$"):
			c.args = splitArgs(text[1:])
		case strings.HasPrefix(text, "  ") && file != "":
			c.files[file] += text[2:] + "\n"
		case strings.HasSuffix(text, ":"):
			file = strings.TrimSuffix(text, ":")
			c.files[file] = ""
		case text == "no environment":
			c.environ = nil
		case strings.Contains(text, "="):
			c.environ = append(c.environ, text)
		default:
			t.Fatalf("cannot read the line %q", text)
		}
	}
	if c.args == nil {
		t.Fatalf("no command line in:\n%s", section)
	}
	return c
}

// splitArgs splits at spaces that are not between single quotes.
func splitArgs(s string) []string {
	args := []string{}
	quoted, started := false, false
	var arg strings.Builder
	for _, r := range s {
		switch {
		case r == '\'':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				args = append(args, arg.String())
			}
			arg.Reset()
			started = false
		default:
			arg.WriteRune(r)
			started = true
		}
	}
	if started {
		args = append(args, arg.String())
	}
	return args
}

// play parses the case and describes the outcome.
func (c usageCase) play(t *testing.T) string {
	t.Helper()
	for name, text := range c.files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	_, cfg, warnings, err := parse(c.args, c.environ, &out, &out)
	if err != nil {
		code := exitCode(err, &out)
		return fmt.Sprintf("exit %d\n%s", code, out.String())
	}
	_, defaults, _, err := parse([]string{"run"}, []string{"WALRELAY_POSTGRES=host=db"}, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		fmt.Fprintf(&out, "warning: %s\n", warning)
	}
	got, normal := describe(t, cfg), describe(t, defaults)
	for _, name := range settingNames(t) {
		if got[name] != normal[name] {
			fmt.Fprintf(&out, "%s: %s\n", name, got[name])
		}
	}
	if out.Len() == 0 {
		return "the defaults\n"
	}
	return out.String()
}

// settingNames are the names of the settings, from the struct tags and names
// that kong goes by.
func settingNames(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, flag := range settings(model(t, &cli{})) {
		names = append(names, flag.Name)
	}
	return names
}

// describe is what each setting became, by name.
func describe(t *testing.T, cfg *Config) map[string]string {
	t.Helper()
	c := &cli{Config: *cfg}
	texts := map[string]string{}
	for _, flag := range settings(model(t, c)) {
		switch v := flag.Target.Interface().(type) {
		case *pgx.ConnConfig:
			texts[flag.Name] = fmt.Sprintf("%s@%s:%d/%s", v.User, v.Host, v.Port, v.Database)
		case fmt.Stringer:
			texts[flag.Name] = v.String()
		case []outbox.FieldColumn:
			texts[flag.Name] = fmt.Sprintf("%+v", v)
		default:
			texts[flag.Name] = fmt.Sprintf("%#v", v)
		}
	}
	return texts
}

// model is kong's view of c.
func model(t *testing.T, c *cli) *kong.Application {
	t.Helper()
	parser, err := kong.New(c, valueTypes()...)
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model
}

func TestHelp(t *testing.T) {
	t.Setenv("COLUMNS", "") // kong goes by it
	commands := []string{""}
	for _, node := range model(t, &cli{}).Children {
		commands = append(commands, node.Name)
	}
	for _, name := range commands {
		args, file := []string{"--help"}, "testdata/help.txt"
		if name != "" {
			args, file = []string{name, "--help"}, "testdata/help-"+name+".txt"
		}
		// Settings that are wrong do not keep the help away.
		code, got, stderr := walrelay([]string{"WALRELAY_SLOT=Not a slot", "WALRELAY_CONFIG=/nowhere"}, args...)
		if code != exitDone || stderr != "" {
			t.Errorf("%v: exit code %d, stderr %q", args, code, stderr)
		}
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%v printed:\n%s\nwant:\n%s", args, got, want)
		}
	}
}

// TestEachSettingIsInTheHelpOfSomeCommand, so that none is hidden by its tag.
func TestEachSettingIsInTheHelpOfSomeCommand(t *testing.T) {
	_, app, _ := walrelay(nil, "--help")
	_, run, _ := walrelay(nil, "run", "--help")
	_, poll, _ := walrelay(nil, "poll", "--help")
	for _, name := range settingNames(t) {
		for _, help := range []string{app, run + poll} {
			if !strings.Contains(help, "--"+name+"=") || !strings.Contains(help, "["+envName(name)+"]") {
				t.Errorf("--%s and %s are not both in the help", name, envName(name))
			}
		}
	}
}

func TestUsageErrorsAreToldApartFromFailures(t *testing.T) {
	_, _, _, err := parse([]string{"run", "--slot", "A"}, nil, &bytes.Buffer{}, &bytes.Buffer{})
	if _, ok := errors.AsType[*usageError](err); !ok {
		t.Errorf("%v is a %v, want a usage error", err, reflect.TypeOf(err))
	}
}
