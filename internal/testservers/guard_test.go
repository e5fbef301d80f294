package testservers

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// legacy is what a program that dies leaves to its guards.
type legacy struct {
	PIDs    []int
	Dirs    []string
	Segment string
}

// The ways a program can go without a word: killed; the time-out of go test, a
// panic and os.Exit are milder forms of it. Frozen servers are the hard case:
// they act on no signal but SIGKILL.
func TestNothingIsLeftWhenTheProgramIsKilled(t *testing.T) {
	switch os.Getenv("WALRELAY_TEST_DOOMED") {
	case "running":
		doomed(t, false)
	case "frozen":
		doomed(t, true)
	}
	for _, servers := range []string{"running", "frozen"} {
		t.Run(servers, func(t *testing.T) {
			program := exec.Command(os.Args[0], "-test.run=^TestNothingIsLeftWhenTheProgramIsKilled$")
			program.Env = append(os.Environ(), "WALRELAY_TEST_DOOMED="+servers)
			program.Stderr = os.Stderr
			out, err := program.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := program.Start(); err != nil {
				t.Fatal(err)
			}
			var left legacy
			line, err := bufio.NewReader(out).ReadString('\n')
			if err == nil {
				err = json.Unmarshal([]byte(line), &left)
			}
			if killErr := program.Process.Kill(); killErr != nil {
				t.Fatal(killErr)
			}
			// Its end is the kill's; what matters is what it leaves.
			_ = program.Wait()
			if err != nil {
				t.Fatalf("the program said %q: %v", line, err)
			}
			if len(left.PIDs) < 5 || len(left.Dirs) != 2 {
				t.Fatalf("too little to look for: %+v", left)
			}
			for _, pid := range left.PIDs {
				eventually(t, "wait for a process of the dead program to end", func() bool { return state(pid) == 0 })
			}
			for _, dir := range left.Dirs {
				eventually(t, "wait for "+dir+" to be removed", func() bool { return !exists(dir) })
			}
			if hasSegment(t, left.Segment) {
				t.Errorf("shared memory segment %s is still there", left.Segment)
			}
		})
	}
}

// doomed starts servers, says which, and waits to be killed.
func doomed(t *testing.T, frozen bool) {
	pg, redis := StartPostgres(t, PostgresOptions{}), StartRedis(t, RedisOptions{})
	connect(t, pg.DSN("postgres"))
	redis.Restart() // the guard must know the process of the day
	left := legacy{
		PIDs: append(descendants(pg.PID()), pg.PID(), redis.PID()),
		Dirs: []string{pg.Dir(), redis.Dir()},
		// Which a killed PostgreSQL does not give back.
		Segment: segmentOf(t, pg),
	}
	if frozen {
		pg.Freeze()
		redis.Freeze()
	}
	if err := json.NewEncoder(os.Stdout).Encode(left); err != nil {
		t.Fatal(err)
	}
	select {}
}

// The number of a process that was reaped may be a stranger's by now.
func TestGuardLeavesStrangersAlone(t *testing.T) {
	stranger := exec.Command("cat") // ends with its input
	input, err := stranger.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := newDir(nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := startGuard(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tell := range []func() error{
		func() error { return g.watch(stranger.Process.Pid) },
		g.forget,
		g.close,
	} {
		if err := tell(); err != nil {
			t.Fatal(err)
		}
	}
	input.Close()
	if err := stranger.Wait(); err != nil {
		t.Errorf("the stranger's end: %v", err)
	}
	if exists(dir) {
		t.Errorf("%s is still there", dir)
	}
}

func TestDirectoryOutOfReachIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		return // everybody else's servers run as themselves
	}
	t.Setenv("TMPDIR", t.TempDir()) // testing's own are for ourselves alone
	r := record(func(r *recorder) { StartPostgres(r, PostgresOptions{}) })
	if !strings.Contains(r.fatal, "TMPDIR") {
		t.Errorf("a directory that postgres cannot enter: %q; want what to do", r.fatal)
	}
}
