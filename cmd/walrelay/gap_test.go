package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the slot does not deliver any more is a gap: the line stops, critical at
// once and for as long as it lasts, and nothing is appended or confirmed, also
// of the rows that the slot would deliver.
func TestSlotDoesNotDeliverAllRows(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		gap    func(*world)
	}{
		{"the publication was dropped and made again", "did not exist when a change was written", func(w *world) {
			if w.query(`current_setting('server_version_num')::int >= 180000`) == "true" {
				w.t.Skip("PostgreSQL 18 warns only in its own log: what it leaves out shows as rows that stay unmarked")
			}
			definition := `CREATE PUBLICATION walrelay FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`
			w.exec(`DROP PUBLICATION walrelay`)
			w.insert("missed", 1)
			w.exec(definition)
		}},
		{"WAL was removed by hand", "was removed", func(w *world) {
			const file = `SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots WHERE slot_name = 'walrelay'`
			first := w.query(file)
			w.exec(`SELECT pg_switch_wal()`)
			w.insert("missed", 1)
			w.exec(`SELECT pg_switch_wal()`)
			if err := os.Remove(filepath.Join(w.query(`current_setting('data_directory')`), "pg_wal", first)); err != nil {
				w.t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			p := w.startRelay()
			p.streams()
			w.insert("before", 3)
			w.confirmedPast()
			p.stop()
			tt.gap(w)
			w.insert("after", 3)
			const confirmedLSN = `SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'`
			confirmed := w.query(confirmedLSN)

			p = w.startRelay()
			critical := func(code int, doc healthDocument) bool {
				return code == 503 && strings.Contains(strings.Join(doc.Reasons, " "), tt.reason) && strings.Contains(strings.Join(doc.Reasons, " "), "walrelay teardown")
			}
			p.becomes("critical, with the reason", critical)
			for range 3 {
				p.startsOver()
				if code, doc, err := p.health(); err != nil || !critical(code, doc) {
					t.Errorf("health is %d %+v (%v)", code, doc, err)
				}
			}
			if n := w.redis.Client(t).XLen(context.Background(), "jobs").Val(); n != 3 {
				t.Errorf("%d entries, 3 were there before the gap", n)
			}
			if now := w.query(confirmedLSN); now != confirmed {
				t.Errorf("confirmed went from %s to %s", confirmed, now)
			}
		})
	}
}

// startsOver waits for one more attempt to stream.
func (p *relayProcess) startsOver() {
	p.t.Helper()
	before := strings.Count(p.log.String(), "msg=judged")
	eventually(p.t, "the relay tries again", func() error {
		if strings.Count(p.log.String(), "msg=judged") == before {
			return errors.New("not yet")
		}
		return nil
	})
}
