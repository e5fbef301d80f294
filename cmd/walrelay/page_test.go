package main

import (
	"errors"
	"testing"

	"github.com/stagedoor/walrelay/internal/testbrowser"
)

// page opens the status page of a relay.
func (p *relayProcess) page(browser *testbrowser.Browser, screen testbrowser.Screen, expected ...string) *testbrowser.Tab {
	p.t.Helper()
	p.becomes("there", func(int, healthDocument) bool { return true }) // and its address is known
	return browser.Open(p.t, "http://"+p.http+"/", screen, expected...)
}

// The status pages of a relay and of its standby say what happens, while it
// happens: rows are carried, Redis goes away, the slot is lost, the relay dies.
func TestPageFollowsWhatHappens(t *testing.T) {
	t.Parallel()
	browser := testbrowser.Start(t)
	w := newWorld(t, worldOptions{settings: tightWAL})
	w.exec(`SELECT pg_drop_replication_slot('oracle')`) // it is not to be lost with ours
	p := w.startRelay("--heal", "manual")
	p.streams()
	w.insert("shown", 5)
	w.allMarked()
	w.redisDo("XGROUP", "CREATE", "jobs", "mailer", "0")
	other := w.startRelay("--heal", "manual")

	active := p.page(browser, testbrowser.Desktop, "ERR_") // the relay dies in the end
	active.Becomes("document.documentElement.dataset.level === 'ok'")
	active.Says("#role", "Streams rows as they commit")
	active.Says("#names", "public.outbox → jobs")
	active.Says(".stage[data-state=ok]:nth-child(5)", "5 entries")
	active.Says("#groups", "mailer")
	active.Says("#process", "walrelay ")
	// Samples are taken every five seconds; the rows were carried before one.
	active.Becomes("document.querySelectorAll('.plot canvas').length === 4 && [...document.querySelectorAll('.chart dd')].some((e) => e.innerText.endsWith('s'))")
	standby := other.page(browser, testbrowser.Phone)
	standby.Says("#role", "Stands by")
	standby.Says(".stage[data-state=idle]", "another relay has it")

	w.toRedis.Cut()
	active.Says("#reasons", "Redis has been away for")
	active.Says(".stage:nth-child(5)", "away for")
	active.Becomes("document.documentElement.dataset.level === 'warn'")
	active.Says("#transitions", "Warning after")
	w.eventually("the slot is lost", func() error {
		w.writeWAL()
		if status := w.query(`SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'walrelay'`); status != "lost" {
			return errors.New(status)
		}
		return nil
	})
	active.Says(".stage[data-state=critical]", "the slot has lost WAL")
	active.Says("#runway", "Over")
	active.Says("#level", "Critical")

	p.kill()
	active.Says("#gone", "walrelay has not answered since")
	active.Says("#level", "Not known")
}
