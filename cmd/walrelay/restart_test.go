package main

import (
	"fmt"
	"strings"
	"testing"
)

// recovered waits until the relay has said so many times that a part of it
// works again.
func (p *relayProcess) recovered(part string, times int) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s has recovered %d times", part, times), func() error {
		if n := strings.Count(p.log.String(), part+" recovered"); n < times {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// PostgreSQL restarts, crashes, and takes its time to come back. The relay says
// so while it lasts, says when it is over, and misses nothing.
func TestPostgresComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay("--age-critical", "2s")
	p.streams()
	w.insert("before", 3)
	healthy := func(times int) {
		t.Helper()
		w.insert(fmt.Sprint("after ", times), 3)
		w.verify(0)
		p.recovered("streaming", times)
		p.becomes("ok", func(code int, doc healthDocument) bool {
			return code == 200 && doc.Status == "ok" && doc.Role == "streaming" && len(doc.Reasons) == 0
		})
	}
	for i, come := range []func(){
		func() { w.pg.Restart("fast") },
		func() { w.pg.Restart("immediate") },
		func() { w.pg.Kill(); w.pg.Start() },
		func() {
			w.pg.Stop("fast")
			p.becomes("critical, and says what is away", func(code int, doc healthDocument) bool {
				return code == 503 && doc.reason("streaming", "PostgreSQL") != "" || doc.reason("no row is published", "connect") != ""
			})
			w.pg.Start()
		},
		func() {
			w.toPG.Cut()
			p.saysInHealth("critical", "connect")
			w.insert("while it cannot be reached", 3)
			w.toPG.Restore()
		},
	} {
		w.insert(fmt.Sprint("just before ", i), 20)
		come()
		healthy(i + 1)
	}
	w.allMarked()
	w.confirmedPast()
}
