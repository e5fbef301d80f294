package cdc

import (
	"errors"
	"testing"
	"time"
)

func at(lsn LSN, xid uint32) Commit { return Commit{LSN: lsn, XID: xid, Time: Time(int64(lsn))} }

func TestResume(t *testing.T) {
	cp := Checkpoint{Last: Position{100, 2}, LastCommit: at(100, 7)}
	resume := func(confirmed LSN) *Resume { return NewResume(cp, confirmed) }

	t.Run("skips up to and including the last row", func(t *testing.T) {
		r := resume(50)
		for _, p := range []Position{{60, 0}, {99, 9}, {100, 0}, {100, 2}} {
			if !r.Appended(p) {
				t.Errorf("%v is appended again", p)
			}
		}
		for _, p := range []Position{{100, 3}, {101, 0}} {
			if r.Appended(p) {
				t.Errorf("%v is skipped", p)
			}
		}
	})
	t.Run("rows may be marked once the transaction was met", func(t *testing.T) {
		r := resume(100) // the commit that starts at the confirmed position is delivered
		if r.Met() {
			t.Fatal("met before anything came")
		}
		if err := r.Begin(at(60, 5)); err != nil || r.Met() {
			t.Fatal(err, r.Met())
		}
		if err := r.Keepalive(100); err != nil {
			t.Fatal("a keepalive at the commit's start does not pass it:", err)
		}
		if err := r.Begin(at(100, 7)); err != nil || !r.Met() {
			t.Fatal(err, r.Met())
		}
		if err := errors.Join(r.Begin(at(120, 9)), r.Keepalive(200)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("it does not come again when it is confirmed", func(t *testing.T) {
		r := resume(101)
		if !r.Met() || r.Begin(at(120, 9)) != nil {
			t.Fatal("waits for a transaction that the slot does not deliver")
		}
	})
	t.Run("no position, nothing to meet and nothing to skip", func(t *testing.T) {
		r := NewResume(Checkpoint{Covered: 50}, 50)
		if !r.Met() || r.Appended(Position{50, 0}) {
			t.Fatal("the first commit may start at the consistent point and has to be published")
		}
	})
	for name, pass := range map[string]func(*Resume) error{
		"another transaction at the place": func(r *Resume) error { return r.Begin(at(100, 8)) },
		"another time": func(r *Resume) error {
			return r.Begin(Commit{LSN: 100, XID: 7, Time: Time(100).Add(time.Microsecond)})
		},
		"passed by a transaction": func(r *Resume) error { return r.Begin(at(101, 7)) },
		"passed by a keepalive":   func(r *Resume) error { return r.Keepalive(101) },
	} {
		t.Run(name, func(t *testing.T) {
			r := resume(50)
			if err := pass(r); !errors.Is(err, ErrHistory) {
				t.Errorf("got %v, want ErrHistory", err)
			}
			if r.Met() {
				t.Error("counts as met")
			}
		})
	}
}
