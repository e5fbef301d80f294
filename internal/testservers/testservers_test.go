package testservers

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// recorder is a TB that a test looks at afterwards.
type recorder struct {
	failed   bool
	fatal    string
	logs     strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()                     {}
func (r *recorder) Failed() bool                { return r.failed }
func (r *recorder) Logf(f string, args ...any)  { fmt.Fprintf(&r.logs, f+"\n", args...) }
func (r *recorder) Cleanup(f func())            { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Fatalf(f string, arg ...any) { r.fatal = fmt.Sprintf(f, arg...); runtime.Goexit() }

// record runs f and what it registers, as testing does.
func record(f func(r *recorder)) *recorder {
	r := &recorder{}
	call := func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		<-done
	}
	call(func() { f(r) })
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		call(r.cleanups[i])
	}
	return r
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	patient(t, what, func(ctx context.Context) error { return poll(ctx, check) })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestServerThatDoesNotStartShowsItsLog(t *testing.T) {
	for kind, start := range map[string]func(*recorder){
		"PostgreSQL": func(r *recorder) {
			StartPostgres(r, PostgresOptions{Settings: map[string]string{"no_such_setting": "1"}})
		},
		"Redis": func(r *recorder) { StartRedis(r, RedisOptions{Args: []string{"--no-such-setting", "1"}}) },
	} {
		r := record(start)
		if !strings.Contains(r.fatal, kind) || !strings.Contains(strings.ReplaceAll(r.fatal, "-", "_"), "no_such_setting") {
			t.Errorf("%s: the test ended with %q; it must say what the server said", kind, r.fatal)
		}
	}
}

func TestMissingProgramsEndTheTestWithTheCommandThatInstallsThem(t *testing.T) {
	empty := t.TempDir()
	if _, err := newestPostgres(empty); err == nil || !strings.Contains(err.Error(), installPostgres) {
		t.Errorf("no PostgreSQL: %v; want %q in it", err, installPostgres)
	}
	t.Setenv("WALRELAY_TEST_PGBIN", empty)
	r := record(func(r *recorder) { StartPostgres(r, PostgresOptions{}) })
	if !strings.Contains(r.fatal, "WALRELAY_TEST_PGBIN") {
		t.Errorf("a wrong WALRELAY_TEST_PGBIN: %q", r.fatal)
	}
	t.Setenv("PATH", empty)
	t.Setenv("WALRELAY_TEST_REDIS", "")
	r = record(func(r *recorder) { StartRedis(r, RedisOptions{}) })
	if !strings.Contains(r.fatal, installRedis) {
		t.Errorf("no Redis: %q; want %q in it", r.fatal, installRedis)
	}
}

func TestFailedTestShowsTheServersLogAndLeavesNothing(t *testing.T) {
	var dirs []string
	r := record(func(r *recorder) {
		pg := StartPostgres(r, PostgresOptions{})
		redis := StartRedis(r, RedisOptions{})
		dirs = append(dirs, pg.Dir(), redis.Dir())
		r.failed = true
	})
	for _, line := range []string{"database system is ready", "Ready to accept connections"} {
		if !strings.Contains(r.logs.String(), line) {
			t.Errorf("%q is not in the log of the test:\n%s", line, r.logs.String())
		}
	}
	for _, dir := range dirs {
		if exists(dir) {
			t.Errorf("%s is still there", dir)
		}
	}
	r = record(func(r *recorder) { StartRedis(r, RedisOptions{}) })
	if r.logs.Len() > 0 {
		t.Errorf("a test that passes must be silent: %s", r.logs.String())
	}
}
