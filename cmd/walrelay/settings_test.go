package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// samples are two values for each setting, not the default.
func samples() map[string][2]string {
	return map[string][2]string{
		"postgres":            {"postgres://u@one:5432/shop", "host=two user=u dbname=shop"},
		"redis":               {"redis://one:6380/1", "unix:///run/redis.sock?db=2"},
		"table":               {"app.outbox", `Shop."Out.Box"`},
		"stream":              {"orders", "tickets"},
		"maxlen":              {"1000", "20"},
		"slot":                {"one", "two_2"},
		"publication":         {"one", "Two Words"},
		"http":                {":9000", ""},
		"confirm-delay":       {"0s", "1m"},
		"mark":                {"delete", "none"},
		"shutdown-timeout":    {"1s", "2s"},
		"age-warn":            {"0s", "2s"},
		"age-critical":        {"90s", "2m"},
		"lag-warn":            {"16MiB", "512"},
		"lag-critical":        {"512MiB", "1024"},
		"runway-critical":     {"0s", "30m"},
		"disk-budget":         {"10GiB", "1TiB"},
		"log-format":          {"json", "json"}, // there are two, one of them the default
		"log-level":           {"debug", "warn"},
		"column-id":           {"ID", "key"},
		"column-kind":         {"type", "Kind"},
		"column-payload":      {"body", "Data"},
		"column-created-at":   {"at", ""},
		"column-published-at": {"sent", ""},
		"heal":                {"manual", "manual"}, // as with log-format
		"heal-margin":         {"2h", "30m"},
		"purge-after":         {"168h", "1h"},
		"poll-interval":       {"50ms", "1s"},
		"listen":              {"new_outbox_event", "rows of shop"},
		"safety-interval":     {"5m", "30s"},
		"field":               {"id=id,body=payload", "id=id"},
	}
}

// flagArgs gives a setting on the command line.
func flagArgs(name, value string) []string {
	if name != "field" {
		return []string{"--" + name + "=" + value}
	}
	var args []string
	for field := range strings.SplitSeq(value, ",") {
		args = append(args, "--field="+field)
	}
	return args
}

// yamlLine gives a setting in the file.
func yamlLine(name, value string) string {
	if name != "field" {
		return name + ": '" + strings.ReplaceAll(value, "'", "''") + "'\n"
	}
	return name + ": ['" + strings.Join(strings.Split(value, ","), "', '") + "']\n"
}

// sourced parses one setting from any of the three places; "-" leaves it out.
func sourced(t *testing.T, name, inFlag, inEnv, inFile string) string {
	t.Helper()
	args := []string{"run"}
	var environ []string
	file := "# nothing yet\n"
	if name != "postgres" {
		args = append(args, "--postgres=host=db")
	}
	if name == "column-id" { // one of the fields is the id column
		args = append(args, "--field=id=ID", "--field=key=key", "--field=old=id")
	}
	if inFlag != "-" {
		args = append(args, flagArgs(name, inFlag)...)
	}
	if inEnv != "-" {
		environ = append(environ, envName(name)+"="+inEnv)
	}
	if inFile != "-" {
		file += yamlLine(name, inFile)
	}
	path := filepath.Join(t.TempDir(), "walrelay.yml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	_, cfg, _, err := parse(append(args, "--config="+path), environ, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil {
		t.Fatalf("--%s: flag %q, variable %q, file %q: %v", name, inFlag, inEnv, inFile, err)
	}
	return describe(t, cfg)[name]
}

func TestEachSettingIsAFlagAVariableAndAKey(t *testing.T) {
	for _, name := range settingNames(t) {
		if name == "config" {
			continue
		}
		values, ok := samples()[name]
		if !ok {
			t.Errorf("no samples for --%s", name)
			continue
		}
		a, b := values[0], values[1]
		byFlag, byOther := sourced(t, name, a, "-", "-"), sourced(t, name, b, "-", "-")
		var untouched string
		if name != "postgres" {
			untouched = sourced(t, name, "-", "-", "-")
		}
		if byFlag == untouched || byOther == untouched {
			t.Fatalf("--%s: the samples make no difference", name)
		}
		for _, tt := range []struct {
			source                string
			inFlag, inEnv, inFile string
			want                  string
		}{
			{"the variable alone", "-", a, "-", byFlag},
			{"the file alone", "-", "-", a, byFlag},
			{"the flag before the variable", a, b, "-", byFlag},
			{"the flag before the variable, the other way round", b, a, "-", byOther},
			{"the flag before the file", a, "-", b, byFlag},
			{"the flag before the file, the other way round", b, "-", a, byOther},
			{"the variable before the file", "-", a, b, byFlag},
			{"the variable before the file, the other way round", "-", b, a, byOther},
			{"the flag before all", a, b, b, byFlag},
		} {
			if got := sourced(t, name, tt.inFlag, tt.inEnv, tt.inFile); got != tt.want {
				t.Errorf("%s: %s: %s, want %s", name, tt.source, got, tt.want)
			}
		}
		if a == b { // the flag gives the default, the others do not
			d := map[string]string{"log-format": "text", "heal": "auto"}[name]
			for _, other := range [][3]string{{d, a, a}, {"-", d, a}} {
				if got := sourced(t, name, other[0], other[1], other[2]); got != untouched {
					t.Errorf("%s: flag, variable, file %q: %s, want %s", name, other, got, untouched)
				}
			}
		}
	}
}

// TestTheFileIsNamedByFlagOrVariable is the precedence of --config itself.
func TestTheFileIsNamedByFlagOrVariable(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(name+".yml", []byte("postgres: host=db\nstream: "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args, environ []string
		want          string
	}{
		{[]string{"run", "--config", "one.yml"}, nil, "one"},
		{[]string{"--config", "one.yml", "run"}, nil, "one"},
		{[]string{"run"}, []string{"WALRELAY_CONFIG=two.yml"}, "two"},
		{[]string{"run", "--config", "one.yml"}, []string{"WALRELAY_CONFIG=two.yml"}, "one"},
	} {
		_, cfg, _, err := parse(tt.args, tt.environ, &bytes.Buffer{}, &bytes.Buffer{})
		if err != nil {
			t.Errorf("%v %v: %v", tt.args, tt.environ, err)
		} else if cfg.Stream != tt.want {
			t.Errorf("%v %v: read %s.yml, want %s.yml", tt.args, tt.environ, cfg.Stream, tt.want)
		}
	}
}

func TestSizesPrintAsTheyAreWritten(t *testing.T) {
	for _, s := range []string{"1B", "1023B", "1KiB", "1536KiB", "3MiB", "1GiB", "2TiB"} {
		b, err := parseBytes(s)
		if err != nil || b.String() != s {
			t.Errorf("%s: %d, %s, %v", s, b, b, err)
		}
	}
}

func TestLogGoesByFormatAndLevel(t *testing.T) {
	for _, tt := range []struct{ format, level, want string }{
		{"text", "warn", "level=WARN msg=seen n=1\n"},
		{"json", "warn", `"level":"WARN","msg":"seen","n":1}` + "\n"},
	} {
		_, cfg, _, err := parse([]string{"run", "--postgres=host=db", "--log-format", tt.format, "--log-level", tt.level}, nil, &bytes.Buffer{}, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log := newLogger(&out, cfg)
		log.Info("hidden")
		log.Warn("seen", "n", 1)
		if strings.Contains(out.String(), "hidden") || !strings.HasSuffix(out.String(), tt.want) {
			t.Errorf("%s: %q, want one line that ends in %q", tt.format, out.String(), tt.want)
		}
	}
}
