package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/internal/audit"
)

// audit runs one past the proxies and reads its JSON.
func (w *world) audit(flags ...string) (code int, report audit.Report, stderr string) {
	w.t.Helper()
	code, stdout, stderr := walrelay(nil, append([]string{"audit", "--postgres", w.dsn, "--redis", w.redis.URL(), "--json"}, flags...)...)
	if stdout == "" {
		w.t.Fatalf("the audit ended with %d and printed nothing: %s", code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		w.t.Fatalf("%v in:\n%s", err, stdout)
	}
	if report.Clean != (code == exitDone) || code == exitUsage {
		w.t.Errorf("the exit code is %d, clean %v", code, report.Clean)
	}
	return code, report, stderr
}

// finds expects these findings: what is not zero, with the ids that are listed.
func (w *world) finds(want string, flags ...string) audit.Report {
	w.t.Helper()
	_, r, stderr := w.audit(flags...)
	if got := found(r); got != want {
		w.t.Errorf("the audit found %q, want %q\n%s", got, want, stderr)
	}
	return r
}

func found(r audit.Report) string {
	var parts []string
	for _, f := range []struct {
		name string
		audit.Findings
	}{
		{"missing", r.Missing.Findings},
		{"duplicated", r.Duplicated},
		{"foreign", r.Foreign},
		{"changed", r.Changed},
		{"waiting", r.Waiting},
		{"trimmed", r.Trimmed},
		{"dead", r.Dead},
	} {
		if f.Count == 0 {
			continue
		}
		text := f.name
		for _, one := range f.List {
			text += " " + one.ID
		}
		if int(f.Count) != len(f.List) {
			text = fmt.Sprint(f.name, " ", f.Count)
		}
		parts = append(parts, text)
	}
	if r.Gone > 0 {
		parts = append(parts, fmt.Sprint("gone ", r.Gone))
	}
	if r.OtherEntries > 0 {
		parts = append(parts, fmt.Sprint("other ", r.OtherEntries))
	}
	return strings.Join(parts, ", ")
}

// entryOf is the entry of the row with this id.
func (w *world) entryOf(id string) redis.XMessage {
	w.t.Helper()
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Values["outbox_id"] == id {
			return e
		}
	}
	w.t.Fatalf("there is no entry of row %s", id)
	return redis.XMessage{}
}

// xadd appends an entry.
func (w *world) xadd(stream string, values any) {
	w.t.Helper()
	if err := w.rdb().XAdd(w.t.Context(), &redis.XAddArgs{Stream: stream, Values: values}).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// Each finding is found when it is there, and none when it is not.
func TestAuditFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.finds("") // no relay, no rows, no stream
	p := w.startRelay()
	p.streams()
	w.insert("row", 20)
	w.allMarked()
	r := w.finds("")
	if r.Rows != 20 || r.Entries != 20 || !r.Covered {
		t.Errorf("%d rows, %d entries, covered %v", r.Rows, r.Entries, r.Covered)
	}
	w.xadd("jobs", []string{"something", "else"})
	w.finds("other 1")

	w.xadd("jobs", w.entryOf("5").Values)
	w.finds("duplicated 5, other 1")
	w.xadd("jobs", []string{"kind", "row", "outbox_id", "999", "payload", "{}"})
	w.xadd("jobs", []string{"kind", "row", "outbox_id", "not a number", "payload", "{}"})
	w.finds("duplicated 5, foreign 999 not a number, other 1")

	w.redisDo("XDEL", "jobs", w.entryOf("7").ID)
	r = w.finds("missing 7, duplicated 5, foreign 999 not a number, other 1")
	if r.Missing.Deletable != 1 || r.Missing.Oldest == nil {
		t.Errorf("missing is %+v", r.Missing)
	}
	w.xadd("jobs", []string{"kind", "row", "outbox_id", "7", "payload", `{"n": -1}`})
	w.finds("duplicated 5, foreign 999 not a number, changed 7, other 1")
	w.exec(`UPDATE outbox SET payload = '{"n": -2}' WHERE id = 15`)
	w.finds("duplicated 5, foreign 999 not a number, changed 7 15, other 1")
	w.xadd("jobs:dead", []string{"outbox_id", "7", "walrelay_reason", "too large", "walrelay_position", "0/1-0"})
	w.finds("duplicated 5, foreign 999 not a number 7, changed 15, dead 7, other 1")

	// The duplicate's first entry goes, and the entries of its predecessors.
	w.redisDo("XTRIM", "jobs", "MINID", w.entryOf("6").ID)
	w.finds("foreign 999 not a number 7, changed 15, trimmed 1 2 3 4, dead 7, other 1")

	// Rows without a relay.
	p.stop()
	w.insert("late", 2)
	w.finds("foreign 999 not a number 7, changed 15, waiting 21 22, trimmed 1 2 3 4, dead 7, other 1", "--wait", "3s")
	_, r, _ = w.audit("--wait", "3s", "--since", w.query(`SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM outbox WHERE id = 21`))
	if got := found(r); strings.TrimSuffix(got, ", other 1") != "waiting 21 22" { // that one may be as young
		t.Errorf("since a time the audit found %q", got)
	}

	// Rows that are deleted once they are old.
	p = w.startRelay()
	p.streams()
	w.allMarked()
	w.exec(`DELETE FROM outbox WHERE id < 12`)
	_, r, _ = w.audit()
	if got := found(r); got != "changed 15, gone 9, other 1" {
		t.Errorf("after a purge the audit found %q", got)
	}
}

// A relay that works at full speed is never taken for one that loses rows,
// wherever it is, nor is one that starts, stops or is killed meanwhile, if it
// comes back.
func TestAuditOfARunningRelayFindsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	// Rows that change, or go, after they were inserted are another matter.
	w.pace = 200 * time.Millisecond // else each audit takes longer than the one before
	ws := w.startWriters(4, 7, "spilled", "update in it", "delete in it", "delete published")
	defer ws.end()
	rounds, rows := 0, int64(0)
	for rounds < 4 || rows < 1000 {
		r := w.finds("")
		if rows = r.Rows; !r.Covered {
			t.Errorf("round %d: the relay has not covered %s", rounds, r.LSN)
		}
		if w.t.Failed() {
			return
		}
		rounds++
	}
	t.Logf("%d audits", rounds)
	p.kill()
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		p = w.startRelay()
	}()
	w.finds("", "--wait", "2m")
	<-restarted
	p.streams()
	ws.end()
	w.endPrepared()
	w.allMarked()
	w.finds("")
}

// Rows that are deleted when they are published leave entries without rows, and
// all that a row can tell is that it is still there.
func TestAuditWhereRowsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--mark", "delete")
	p.streams()
	w.insert("row", 10)
	w.allDeleted()
	w.finds("gone 10", "--mark", "delete")
	w.xadd("jobs", w.entryOf("5").Values)
	w.finds("duplicated 5, gone 10", "--mark", "delete")
	p.stop()
	w.insert("row", 1)
	w.finds("duplicated 5, waiting 11, gone 10", "--mark", "delete", "--wait", "3s")
}

// Without marks, nothing but the stream tells.
func TestAuditWithoutMarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--mark", "none")
	p.streams()
	w.insert("row", 10)
	w.hasEntries(10)
	w.finds("", "--mark", "none")
	w.redisDo("XDEL", "jobs", w.entryOf("5").ID)
	w.finds("missing 5", "--mark", "none")
	w.redisDo("XTRIM", "jobs", "MAXLEN", "3")
	w.finds("trimmed 1 2 3 4 5 6 7", "--mark", "none")
	p.stop()
	w.insert("row", 1)
	w.finds("waiting 11, trimmed 1 2 3 4 5 6 7", "--mark", "none", "--wait", "3s")
}

// For people the audit says what it found in words, and the same exit codes.
func TestAuditInWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.insert("row", 3)
	w.allMarked()
	args := []string{"audit", "--postgres", w.dsn, "--redis", w.redis.URL(), "--show", "1"}
	if code, out, stderr := walrelay(nil, args...); code != exitDone || !strings.Contains(out, "complete") || !strings.Contains(out, "3 rows") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	w.redisDo("DEL", "jobs")
	p.kill()
	if code, out, stderr := walrelay(nil, args...); code != exitFailure || !strings.Contains(out, "MISSING 3") || !strings.Contains(out, "and 2 more") || !strings.Contains(stderr, "findings") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	w.redis.Kill()
	if code, out, stderr := walrelay(nil, args...); code != exitFailure || out != "" || !strings.Contains(stderr, "no answer from Redis") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
}

// What an audit holds in memory does not grow with the table.
func TestAuditIsBoundedInMemory(t *testing.T) {
	const rows, atMost = 300_000, 64 << 20
	plain := buildPlain(t)
	w := newWorld(t, worldOptions{volatile: true})
	w.exec(`SELECT pg_drop_replication_slot('oracle')`)
	w.exec(fmt.Sprintf(`INSERT INTO outbox (kind, payload, published_at) SELECT 'row', jsonb_build_object('n', i), now() FROM generate_series(1, %d) i`, rows))
	pipe := w.rdb().Pipeline()
	for i := 1; i <= rows; i++ {
		pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: "jobs", Values: []string{"kind", "row", "outbox_id", fmt.Sprint(i), "payload", fmt.Sprintf(`{"n":%d}`, i)}})
		if i%10_000 == 0 {
			if _, err := pipe.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd := exec.Command(plain, "audit", "--postgres", w.dsn, "--redis", w.redis.URL(), "--json")
	var out lockedBuffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// Asked of the process as long as it lives: what is told of one that has
	// ended counts also the memory of the process that started it.
	var peak int64
	var err error
	for alive := true; alive; {
		if n, err := peakMemory(cmd.Process.Pid); err == nil {
			peak = max(peak, n)
		}
		select {
		case err = <-ended:
			alive = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err != nil || peak == 0 {
		t.Fatalf("%v: %s", err, out.String())
	}
	t.Logf("peak memory: %.1f MiB, %v of processor time", float64(peak)/(1<<20), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	if peak > atMost {
		t.Errorf("peak memory is %d bytes, want at most %d", peak, atMost)
	}
}
