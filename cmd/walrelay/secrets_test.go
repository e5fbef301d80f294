package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPasswordsAreNeverPrinted gives passwords in all ways that are right, and
// in the ways that one gets them wrong.
func TestPasswordsAreNeverPrinted(t *testing.T) {
	const secret = "s3cr3t"
	right := []string{
		"WALRELAY_POSTGRES=postgres://u:" + secret + "@127.0.0.1:1/shop?connect_timeout=1",
		"WALRELAY_REDIS=redis://u:" + secret + "@127.0.0.1:1/0",
	}
	file := filepath.Join(t.TempDir(), "walrelay.yml")
	text := "postgres: postgres://u:" + secret + "@h/shop\nredis: redis://:" + secret + "@h/0\nredis: x\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := []string{
		"postgres://u:%" + secret + "@h/shop",
		"postgres://u:a/" + secret + "@h/shop",
		"postgres://u:" + secret + "@h:port/shop",
		"postgres://h/shop?sslmode=bad&password=" + secret,
		"host=h password = " + secret + " sslmode=bad",
		"host=h password='a\\'" + secret + "' sslmode=bad",
		"host=h password='" + secret,
		"host=h password=a " + secret,
		"u:" + secret + "@h",
		"redis://:%" + secret + "@h:6379/0",
		"redis://:a/" + secret + "@h:6379/0",
		"redis://:1/" + secret + "@h:6379/0",
		"redis://:1#" + secret + "@h:6379/0",
		"redis://:" + secret + "@h:6379/zero",
		"redis://:x@h:6379/0?password=" + secret,
		"redis://:x@h:6379/0?db=" + secret,
		"rediss+sentinel://:" + secret + "@h:6379/0",
		secret + "@h",
	}

	type call struct{ environ, args []string }
	calls := []call{
		{right, []string{"--help"}},
		{right, []string{"run", "--help"}},
		{right, []string{"version"}},
		{right, []string{"run", "--slot", "A"}},
		{right, []string{"run", "--nonsense"}},
		{right, []string{"teardown"}},
		{nil, []string{"run", "--config", file}},
	}
	for _, w := range wrong {
		calls = append(calls,
			call{nil, []string{"run", w}}, // its flag forgotten
			call{nil, []string{w}},
			call{nil, []string{"run", "--stream", w, w}},
			call{nil, []string{"run", "--help=" + w}},
			call{nil, []string{"teardown", "--yes=" + w}},
			call{nil, []string{"run", "-postgres=" + w}},
			call{nil, []string{"run", "--postgre=" + w}},
			call{nil, []string{"run", "--config", "--postgres=" + w}},
			call{right, []string{"run", "--redis=" + w}},
			call{append(right, "WALRELAY_REDIS="+w), []string{"run"}},
		)
		if !strings.Contains(w, "redis") {
			calls = append(calls,
				call{nil, []string{"run", "--postgres=" + w}},
				call{[]string{"WALRELAY_POSTGRES=" + w}, []string{"run"}},
			)
		}
	}
	for _, c := range calls {
		code, stdout, stderr := walrelay(append(c.environ, "WALRELAY_LOG_LEVEL=debug"), c.args...)
		if strings.Contains(stdout+stderr, secret) {
			t.Errorf("%v %v printed the password:\n%s%s", c.environ, c.args, stdout, stderr)
		}
		if stdout == "" && (code == exitDone || stderr == "") {
			t.Errorf("%v %v: exit code %d without a word", c.environ, c.args, code)
		}
	}

	_, cfg, _, err := parse([]string{"run"}, right, os.Stdout, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if printed := fmt.Sprintf("%v %+v %#v", cfg, *cfg, *cfg); strings.Contains(printed, secret) {
		t.Errorf("printing the settings prints the password: %s", printed)
	}
}
