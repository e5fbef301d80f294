package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"

	"github.com/stagedoor/walrelay/internal/pg"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/slot"
)

// setUp is a database with all that a relay leaves behind.
type setUp struct {
	postgres *testservers.Postgres
	redis    *testservers.Redis
	dsn      string
	conn     *pgx.Conn
	client   *redis.Client
	key      string // of the checkpoint
	args     []string
}

func newSetUp(t *testing.T) *setUp {
	t.Helper()
	s := &setUp{
		postgres: testservers.StartPostgres(t, testservers.PostgresOptions{}),
		redis:    testservers.StartRedis(t, testservers.RedisOptions{}),
	}
	s.dsn = s.postgres.NewDatabase(t)
	s.conn = connect(t, s.dsn)
	s.client = s.redis.Client(t)
	s.key = publisher.Key(query(t, s.conn, `SELECT system_identifier FROM pg_control_system()`), query(t, s.conn, `SELECT current_database()`), "walrelay")
	s.args = []string{"teardown", "--postgres", s.dsn, "--redis", s.redis.URL()}
	s.build(t)
	return s
}

// build makes what is not there.
func (s *setUp) build(t *testing.T) {
	t.Helper()
	if code, _, stderr := walrelay(nil, "setup", "--create-table", "--postgres", s.dsn); code != exitDone {
		t.Fatal(stderr)
	}
	execute(t, s.conn, `SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')
		WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'walrelay')`)
	if err := s.client.HSet(t.Context(), s.key, "version", "x-1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.client.XAdd(t.Context(), &redis.XAddArgs{Stream: "jobs", Values: []string{"outbox_id", "1"}}).Err(); err != nil {
		t.Fatal(err)
	}
}

// there says which of the parts exist; table and stream always must.
func (s *setUp) there(t *testing.T) string {
	t.Helper()
	if query(t, s.conn, `SELECT to_regclass('public.outbox') IS NOT NULL`) != "true" {
		t.Error("the table is gone")
	}
	keys, err := s.client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(keys, " "), "jobs") {
		t.Error("the stream is gone")
	}
	return fmt.Sprintf("slots %s publications %s keys %d",
		query(t, s.conn, `SELECT count(*) FROM pg_replication_slots`),
		query(t, s.conn, `SELECT count(*) FROM pg_publication`), len(keys)-1)
}

const (
	allThere = "slots 1 publications 1 keys 1"
	allGone  = "slots 0 publications 0 keys 0"
)

// mustBe fails the test if the parts that exist are not those.
func (s *setUp) mustBe(t *testing.T, want string) {
	t.Helper()
	if got := s.there(t); got != want {
		t.Errorf("there are: %s; want: %s", got, want)
	}
}

func TestTeardownDropsAllButTheTableAndCanBeRunAgain(t *testing.T) {
	s := newSetUp(t)
	s.mustBe(t, allThere)
	args := append(s.args, "--yes")
	expect(t, exitDone, `dropped the slot "walrelay"
dropped the publication "walrelay"
dropped the checkpoint "`+s.key+`"
`, args...)
	s.mustBe(t, allGone)
	expect(t, exitDone, `there is no slot "walrelay"
there is no publication "walrelay"
there is no checkpoint "`+s.key+`"
`, args...)
}

func TestTeardownNeedsYesWhereNobodyCanBeAsked(t *testing.T) {
	s := newSetUp(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	fmt.Fprintln(writer, "y")
	writer.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, stdin := range []*os.File{nil, reader, null} {
		var stderr strings.Builder
		if code := realMain(s.args, nil, stdin, io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), "--yes") {
			t.Errorf("exit code %d, printed %s", code, stderr.String())
		}
	}
	s.mustBe(t, allThere)
}

func TestTeardownAsksOnATerminal(t *testing.T) {
	s := newSetUp(t)
	shown := fmt.Sprintf(`This drops:
  slot "walrelay" in database "test1", confirmed up to %s
  publication "walrelay" in database "test1"
  checkpoint "%s" in redis://%s database 0
The table "public"."outbox" and the stream "jobs" stay.
Drop? [y/N] `, query(t, s.conn, `SELECT confirmed_flush_lsn FROM pg_replication_slots`), s.key, s.redis.Addr())
	for _, answer := range []string{"n\n", "\n", "drop\n"} {
		code, stdout, stderr := s.answer(t, answer)
		if code != exitFailure || stdout != shown || stderr != "walrelay: nothing was dropped\n" {
			t.Errorf("to %q: exit code %d, printed:\n%s%s\nwant:\n%s", answer, code, stdout, stderr, shown)
		}
		s.mustBe(t, allThere)
	}
	code, stdout, stderr := s.answer(t, "y\n")
	if code != exitDone || !strings.HasPrefix(stdout, shown+"dropped the slot") {
		t.Errorf("to y: exit code %d, printed:\n%s%s", code, stdout, stderr)
	}
	s.mustBe(t, allGone)

	// Nothing is left to ask about.
	code, stdout, stderr = s.answer(t, "\x04") // the end of the input
	if code != exitDone || !strings.Contains(stdout, "Nothing to drop:\n  slot \"walrelay\": there is none\n") {
		t.Errorf("afterwards: exit code %d, printed:\n%s%s", code, stdout, stderr)
	}
}

// answer runs teardown in a process of its own on a terminal, on which the
// answer is typed.
func (s *setUp) answer(t *testing.T, answer string) (code int, stdout, stderr string) {
	t.Helper()
	keyboard, terminal := newTerminal(t)
	if _, err := keyboard.WriteString(answer); err != nil {
		t.Fatal(err)
	}
	cmd := self(t, s.args...)
	var out, errOut strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &out, &errOut
	_ = cmd.Run() // the exit code says more
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

// newTerminal makes a terminal and what types on it.
func newTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return keyboard, terminal
}

// TestTeardownThatAsksEndsAtASignal, and does not wait for the answer.
func TestTeardownThatAsksEndsAtASignal(t *testing.T) {
	s := newSetUp(t)
	_, cmdIn := newTerminal(t)
	cmd := self(t, s.args...)
	cmd.Stdin = cmdIn
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hung := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	shown := bufio.NewReader(stdout)
	for question := ""; !strings.HasSuffix(question, "[y/N] "); {
		b, err := shown.ReadByte()
		if err != nil {
			t.Fatalf("it printed %q and ended", question)
		}
		question += string(b)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with: %v", cmd.ProcessState)
	}
	s.mustBe(t, allThere)
}

// TestTeardownKeepsTheCheckpointOfASlotThatStays: the relay needs both.
func TestTeardownKeepsTheCheckpointOfASlotThatStays(t *testing.T) {
	s := newSetUp(t)
	execute(t, s.conn, `CREATE ROLE nobody LOGIN`)
	s.args[2] = strings.Replace(s.dsn, "postgres@", "nobody@", 1)
	expectFailure(t, exitFailure, []string{`ALTER ROLE "nobody" REPLICATION`}, append(s.args, "--yes")...)
	s.mustBe(t, allThere)
}

func TestTeardownRefusesASlotInUse(t *testing.T) {
	s := newSetUp(t)
	session := s.session(t)
	if _, err := session.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := query(t, s.conn, `SELECT active_pid FROM pg_replication_slots`)
	for range 2 { // neither time
		expectFailure(t, exitFailure, []string{"process " + pid, "stop the relay", "pg_terminate_backend(" + pid + ")"}, append(s.args, "--yes")...)
	}
	s.mustBe(t, allThere)
	session.Close()
	if code, _, stderr := walrelay(nil, append(s.args, "--yes")...); code != exitDone {
		t.Errorf("after the relay stopped: exit code %d, %s", code, stderr)
	}
	s.mustBe(t, allGone)
}

// TestTeardownRefusesARelayInItsBackfill, which has no slot of the name yet.
func TestTeardownRefusesARelayInItsBackfill(t *testing.T) {
	s := newSetUp(t)
	execute(t, s.conn, `SELECT pg_drop_replication_slot('walrelay')`)
	session := s.session(t)
	if ok, err := session.TryLock(t.Context()); !ok || err != nil {
		t.Fatalf("TryLock: %t, %v", ok, err)
	}
	pid := query(t, s.conn, `SELECT pid FROM pg_locks WHERE locktype = 'advisory'`)
	expectFailure(t, exitFailure, []string{"process " + pid, "stop the relay"}, append(s.args, "--yes")...)
	s.mustBe(t, "slots 0 publications 1 keys 1")
}

// session is a relay's.
func (s *setUp) session(t *testing.T) *slot.Session {
	t.Helper()
	conn, err := pg.Parse(s.dsn)
	if err != nil {
		t.Fatal(err)
	}
	session, err := slot.New(slot.Config{Conn: conn, Slot: "walrelay", Publication: "walrelay"}, slog.New(slog.DiscardHandler)).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

func TestTeardownLeavesSlotsThatAreNotOurs(t *testing.T) {
	s := newSetUp(t)
	for _, tt := range []struct{ why, sql string }{
		{"another plugin", `SELECT pg_create_logical_replication_slot('walrelay', 'test_decoding')`},
		{"a physical one", `SELECT pg_create_physical_replication_slot('walrelay')`},
		{"of another database", ""},
	} {
		execute(t, s.conn, `SELECT pg_drop_replication_slot('walrelay')`)
		if tt.sql != "" {
			execute(t, s.conn, tt.sql)
		} else {
			execute(t, connect(t, s.postgres.DSN("postgres")), `SELECT pg_create_logical_replication_slot('walrelay', 'pgoutput')`)
		}
		t.Log(tt.why)
		expectFailure(t, exitFailure, []string{"not a relay's slot", "--slot"}, append(s.args, "--yes")...)
		s.mustBe(t, allThere)
		if tt.sql == "" {
			execute(t, connect(t, s.postgres.DSN("postgres")), `SELECT pg_drop_replication_slot('walrelay')`)
		}
	}
}

// TestTeardownFreesTheSlotWithoutRedis: the slot holds log on the primary, and
// Redis may never come back.
func TestTeardownFreesTheSlotWithoutRedis(t *testing.T) {
	s := newSetUp(t)
	s.redis.Stop()
	cmd := self(t, append(s.args, "--yes")...)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	out, _ := cmd.Output() // the exit code says more
	code, stdout, stderr := cmd.ProcessState.ExitCode(), string(out), errOut.String()
	if code != exitFailure || stdout != "dropped the slot \"walrelay\"\ndropped the publication \"walrelay\"\n" ||
		!strings.Contains(stderr, s.key) || !strings.Contains(stderr, "was not dropped") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, printed:\n%s%s", code, stdout, stderr)
	}
}

// TestTeardownGoesOnWhereThePublicationIsSomebodyElses, and says so.
func TestTeardownGoesOnWhereThePublicationIsSomebodyElses(t *testing.T) {
	s := newSetUp(t)
	execute(t, s.conn, `CREATE ROLE relay LOGIN REPLICATION`)
	s.args[2] = strings.Replace(s.dsn, "postgres@", "relay@", 1)
	code, stdout, stderr := walrelay(nil, append(s.args, "--yes")...)
	if code != exitFailure || stdout != "dropped the slot \"walrelay\"\ndropped the checkpoint \""+s.key+"\"\n" ||
		!strings.Contains(stderr, "DROP PUBLICATION \"walrelay\"") {
		t.Errorf("exit code %d, printed:\n%s%s", code, stdout, stderr)
	}
	s.mustBe(t, "slots 0 publications 1 keys 0")
}

func TestTeardownOfOddNames(t *testing.T) {
	s := newSetUp(t)
	execute(t, s.conn, `DROP PUBLICATION walrelay; CREATE PUBLICATION "Pub ""1"" \ '" FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`)
	expect(t, exitDone, `dropped the slot "walrelay"
dropped the publication "Pub \"1\" \\ '"
dropped the checkpoint "`+s.key+`"
`, append(s.args, "--yes", "--publication", `Pub "1" \ '`)...)
	s.mustBe(t, allGone)
}
