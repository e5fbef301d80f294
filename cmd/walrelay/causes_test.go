package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// causes waits until the health document gives a cause that holds all of these.
func (p *relayProcess) causes(parts ...string) {
	p.t.Helper()
	p.becomes(fmt.Sprintf("one with the cause %q", parts), func(_ int, doc healthDocument) bool {
		for _, part := range parts {
			if !strings.Contains(doc.Cause, part) {
				return false
			}
		}
		return true
	})
}

// isReady waits until /readyz says so, or that it is not, and why not.
func (p *relayProcess) isReady(want bool) {
	p.t.Helper()
	code := map[bool]int{true: 200, false: 503}[want]
	eventually(p.t, fmt.Sprint("/readyz answers with ", code), func() error {
		got, body, err := p.get("/readyz")
		if err != nil {
			return err
		}
		var doc struct {
			Ready   bool     `json:"ready"`
			Reasons []string `json:"reasons"`
		}
		if err := json.Unmarshal(body, &doc); err != nil {
			return err
		}
		if got != code || doc.Ready != want {
			return fmt.Errorf("%d %s", got, body)
		}
		return nil
	})
}

// answers expects that each page answers within a second, as a probe has it: on
// a machine that is too busy at one of several tries.
func (p *relayProcess) answers() {
	p.t.Helper()
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/metrics"} {
		eventually(p.t, path+" answers within a second", func() error {
			_, _, err := p.get(path)
			return err
		})
	}
}

// get gives up after a second.
func (p *relayProcess) get(path string) (code int, body []byte, err error) {
	if p.http == "" {
		if _, _, err := p.health(); err != nil { // finds the address
			return 0, nil, err
		}
	}
	client := http.Client{Timeout: time.Second}
	res, err := client.Get("http://" + p.http + path)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// healthLines are those of the log that say what became of health.
func (p *relayProcess) healthLines() (lines []string) {
	for line := range strings.Lines(p.log.String()) {
		if strings.Contains(line, "msg=health ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// emit writes so many MiB of WAL that are nobody's.
func (w *world) emit(mib int) {
	w.t.Helper()
	w.exec(fmt.Sprintf(`SELECT count(pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20))) FROM generate_series(1, %d)`, mib))
}

// checkpointing is for a loop that waits for WAL to be let go: PostgreSQL moves
// restart_lsn on where it notes which transactions are open, as it does with a
// checkpoint. It makes one a second.
func (w *world) checkpointing() func() {
	var last time.Time
	return func() {
		if time.Since(last) >= time.Second {
			w.exec(`CHECKPOINT`)
			last = time.Now()
		}
	}
}

// Redis is away and WAL piles up: from a warning by way of each level of age,
// lag, runway and wal_status to a slot that is lost. Each level is reached by
// what has it, and names Redis; all are left when Redis is back. A relay that
// stands by sees the same. Each change is logged once.
func TestLevelsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{settings: map[string]string{
		"max_wal_size": "96MB", "min_wal_size": "32MB", "max_slot_wal_keep_size": "192MB",
		// So that WAL is removed when the test says.
		"checkpoint_timeout": "1h", "checkpoint_completion_target": "0",
	}})
	w.exec(`SELECT pg_drop_replication_slot('oracle')`) // it would be another culprit
	flags := []string{"--age-warn", "2s", "--age-critical", "8s", "--lag-warn", "3MiB", "--lag-critical", "20MiB", "--runway-critical", "1h"}
	p := w.startRelay(flags...)
	p.streams()
	w.insert("before", 3)
	w.confirmedPast()
	standby := w.startRelay(flags...)
	for _, p := range []*relayProcess{p, standby} {
		p.becomes("ok, without a cause", func(code int, doc healthDocument) bool {
			return code == 200 && doc.Status == "ok" && doc.Cause == "" && doc.Runway == nil && doc.Ready
		})
		p.isReady(true)
	}

	w.toRedis.Cut()
	w.insert("meanwhile", 3)
	p.becomes("warn at once, and names Redis", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "warn" && doc.reason("Redis has been away") != "" && strings.Contains(doc.Cause, "Redis has been unreachable since")
	})
	p.saysInHealth("warn", "The oldest unpublished row is", "warn from 2.0 s")
	p.says("level=WARN msg=health status=warn before=ok")
	p.answers()
	p.saysInHealth("critical", "The oldest unpublished row is", "critical from 8.0 s")
	p.isReady(true)        // it is at work
	standby.isReady(false) // it could not take over
	w.emit(5)
	p.saysInHealth("critical", "WAL are not confirmed", "warn from 3.0 MiB")
	p.saysInHealth("critical", "PostgreSQL keeps", "warn from 3.0 MiB")
	w.emit(20)
	p.saysInHealth("critical", "WAL are not confirmed", "critical from 20.0 MiB")
	p.saysInHealth("critical", "PostgreSQL keeps", "critical from 20.0 MiB")
	p.becomes("one with a runway", func(_ int, doc healthDocument) bool {
		return doc.Runway != nil && *doc.Runway > 0 && *doc.Runway < 3600 && doc.reason("At the present rate", "max_slot_wal_keep_size", "critical from 1 h") != ""
	})
	w.emit(120)
	p.saysInHealth("critical", "wal_status extended", "more can be written before the slot loses WAL")
	standby.becomes("critical too, with the same cause", func(code int, doc healthDocument) bool {
		return code == 503 && doc.Role == "standby" && doc.reason("WAL are not confirmed") != "" && strings.Contains(doc.Cause, "Redis has been unreachable since")
	})

	// In time.
	w.toRedis.Restore()
	checkpoint := w.checkpointing()
	p.becomes("ok, without a cause", func(code int, doc healthDocument) bool {
		checkpoint()
		return code == 200 && doc.Status == "ok" && doc.Cause == "" && doc.Runway == nil && doc.Ready
	})
	p.says("msg=health status=ok before=critical")
	said := p.healthLines()
	if len(said) != 3 {
		t.Errorf("the log has %d lines about health, want that it warns, is critical, and ok again:\n%s", len(said), strings.Join(said, ""))
	}
	for _, line := range said[:len(said)-1] {
		if !strings.Contains(line, `cause="Redis has been unreachable since`) {
			t.Errorf("the log does not name Redis: %s", line)
		}
	}

	// And too late. The relay does not read, since it holds as many rows as it
	// may; PostgreSQL ends its process, and the checkpoint waits for that.
	standby.stop()
	w.toRedis.Cut()
	w.exec(`INSERT INTO outbox (kind, payload) SELECT 'large', to_jsonb(repeat('x', 1000000) || i) FROM generate_series(1, 40) i`)
	w.emit(150)
	w.exec(`CHECKPOINT`) // not by itself in what follows
	w.emit(60)
	p.becomes("critical: the budget is used up", func(_ int, doc healthDocument) bool {
		return doc.Slot != nil && doc.Slot.WALStatus == "unreserved" && doc.reason("wal_status unreserved") != "" && doc.reason("The budget for WAL is used up") != "" &&
			doc.Runway != nil && *doc.Runway == 0 && strings.Contains(doc.Cause, "Redis has been unreachable since")
	})
	w.exec(`SET statement_timeout = '2min'; CHECKPOINT`)
	p.becomes("critical: the slot is lost", func(code int, doc healthDocument) bool {
		return code == 503 && doc.Slot != nil && doc.Slot.WALStatus == "lost" && doc.reason("wal_status lost") != ""
	})
	w.toRedis.Restore()
	p.becomes("ok, without a cause", func(code int, doc healthDocument) bool {
		return doc.Role == "streaming" && doc.Status == "ok" && doc.Cause == ""
	})
	w.allMarked()
	w.each("before", "meanwhile", "large")
}

// A relay cannot stream, and its monitor sees all; then it is the other way
// round. The report tells which, and /readyz says what it is worth.
func TestStreamingAndMonitorFailApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	first := w.startRelay("--postgres", w.dsn)
	first.streams()
	w.insert("before", 3)
	w.confirmedPast()
	p := w.startRelay("--age-critical", "12s")
	p.becomes("standby", func(_ int, doc healthDocument) bool { return doc.Role == "standby" && doc.Status == "ok" })
	p.isReady(true)

	// Only a relay that streams asks for this.
	w.toPG.OnRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("START_REPLICATION")) })
	first.stop()
	w.insert("nobody streams", 3)
	p.becomes("warn: it does not stream, and the monitor sees the slot", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "warn" && doc.Role == "starting" && doc.reason("PostgreSQL has not answered") == "" &&
			doc.reason("The relay has been starting", "last error") != "" && doc.Slot != nil && !doc.Slot.Active && doc.Age != nil && *doc.Age > 0
	})
	p.causes(`No relay is connected to slot "walrelay" since 20`, "last error")
	p.isReady(false)
	p.answers()
	p.saysInHealth("critical", "The relay has been starting")
	p.causes(`No relay is connected to slot "walrelay" since 20`)
	w.toPG.OnRequest(nil)
	p.streams()
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && doc.Cause == "" })
	w.verify(0)
	p.isReady(true)

	// Only the monitor asks for this, when it has connected anew.
	w.toPG.OnRequest(func(piece []byte) bool { return bytes.Contains(piece, []byte("AS wal_end")) })
	dropped := w.walsender()
	w.toPG.Drop()
	var pid string
	w.eventually("the relay streams over another connection", func() error {
		if pid = w.walsender(); pid == "" || pid == dropped {
			return fmt.Errorf("PostgreSQL's process %q sends, and %q before", pid, dropped)
		}
		return nil
	})
	p.becomes("warn: it streams, and the monitor sees nothing", func(code int, doc healthDocument) bool {
		return code == 200 && doc.Status == "warn" && doc.Role == "streaming" &&
			doc.reason("PostgreSQL has not answered the monitor") != "" && doc.reason("Streaming") == ""
	})
	p.isReady(true)
	p.answers()
	w.insert("nobody looks", 3)
	w.verify(0)
	w.allMarked()
	w.confirmedPast()
	p.saysInHealth("critical", "PostgreSQL has not answered the monitor")
	if now := w.walsender(); now != pid {
		t.Errorf("the monitor took the stream along: PostgreSQL's process %s sends, and before it was %s", now, pid)
	}
	w.toPG.OnRequest(nil)
	p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Status == "ok" && len(doc.Reasons) == 0 })

	// Both at once, and Redis as well.
	for _, away := range []struct {
		what       string
		end, begin func()
	}{
		{"swallows all", func() { w.toPG.Resume(); w.toRedis.Resume() }, func() { w.toPG.Stall(); w.toRedis.Stall() }},
		{"refuses all", func() { w.toPG.Restore(); w.toRedis.Restore() }, func() { w.toPG.Cut(); w.toRedis.Cut() }},
	} {
		away.begin()
		p.answers()
		p.becomes("one that warns of both, while the network "+away.what, func(_ int, doc healthDocument) bool {
			return doc.Status != "ok" && doc.reason("Redis has been away") != "" && doc.reason("PostgreSQL has not answered the monitor") != ""
		})
		p.answers()
		away.end()
		p.becomes("ok", func(_ int, doc healthDocument) bool { return doc.Role == "streaming" && doc.Status == "ok" })
	}
	w.insert("after", 3)
	w.verify(0)
}

// Rows come faster than Redis takes them: the cause has both rates. When it is
// quick again the relay catches up, and all is well.
func TestRelayThatIsSlowerThanTheWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--age-warn", "3s", "--age-critical", "10m", "--lag-warn", "4MiB")
	p.streams()
	p.isReady(true)
	w.toRedis.OnRequest(func([]byte) bool {
		time.Sleep(100 * time.Millisecond)
		return false
	})
	rows := w.startLoad(w.dsn, 1, 50*time.Millisecond, `INSERT INTO outbox (kind, payload) SELECT 'load', to_jsonb(repeat('x', 1000) || i) FROM generate_series(1, 200) i`)
	p.becomes("warn, with both rates", func(_ int, doc healthDocument) bool {
		return doc.Status == "warn" && strings.HasPrefix(doc.Cause, "The relay is slower than the writers: WAL grows by ") && strings.HasSuffix(doc.Cause, "/s are confirmed.")
	})
	p.isReady(true)
	rows.end()
	w.toRedis.OnRequest(nil)
	checkpoint := w.checkpointing()
	p.becomes("ok, without a cause of ours", func(_ int, doc healthDocument) bool {
		checkpoint()
		return doc.Status == "ok" && !strings.Contains(doc.Cause, "relay")
	})
	w.verify(0)
}

// A backfill that has to wait is at work, and so ready. A relay whose line is
// stopped by a fault is not; the cause says by which.
func TestLineStoppedByAFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	elsewhere := w.open(w.pg.NewDatabase(t), `CREATE TABLE orders (id int)`)
	w.insert("before", 2)
	p := w.startRelay()
	p.causes("The slot is not created yet: ", "PID "+elsewhere.pid+` (user "postgres", `, "open since 20")
	p.isReady(true)
	elsewhere.commit(t)
	p.streams()
	p.isReady(true)

	w.verify(2)
	w.redisDo("RENAME", "jobs", "kept")
	w.redisDo("SET", "jobs", "somebody else's")
	w.insert("meanwhile", 2)
	p.causes("The line has stopped until somebody acts: ", "--stream")
	p.becomes("critical at once, and not ready", func(code int, doc healthDocument) bool {
		return code == 503 && doc.Status == "critical" && !doc.Ready && doc.reason("The line has stopped until somebody acts") != ""
	})
	p.says(`cause="The line has stopped until somebody acts`)
	w.redisDo("RENAME", "kept", "jobs")
	p.becomes("ok, without a cause", func(_ int, doc healthDocument) bool {
		return doc.Status == "ok" && doc.Cause == "" && doc.Ready
	})
	w.eventually("the log says so", func() error {
		lines := p.healthLines()
		if !strings.Contains(lines[len(lines)-1], "status=ok before=") {
			return errors.New(lines[len(lines)-1])
		}
		return nil
	})
	w.verify(2)
}
