package main

import (
	"fmt"
	"testing"
)

// A row that was changed after it was inserted is another one than its entry to
// a heal, which appends it as it is now. A row that was not changed stays as it
// is, and no later heal appends either once more.
func TestHealAppendsAChangedRowAsItIsNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	p := w.startRelay()
	p.streams()
	w.exec(`BEGIN; INSERT INTO outbox (kind, payload) VALUES ('changed in it', '1');
	        UPDATE outbox SET payload = '2' WHERE kind = 'changed in it'; COMMIT`)
	w.exec(`INSERT INTO outbox (kind, payload) VALUES ('changed later', '1'), ('unchanged', '1')`)
	w.allMarked()
	w.exec(`UPDATE outbox SET payload = '2' WHERE kind = 'changed later'`)
	want := map[string]int{"changed in it 1": 1, "changed in it 2": 1, "changed later 1": 1, "changed later 2": 1, "unchanged 1": 1}
	for range 2 {
		p.stop()
		w.exec(`SELECT pg_drop_replication_slot('walrelay')`)
		p = w.startRelay()
		p.streams()
		entries, err := w.entries()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for _, e := range entries {
			got[fmt.Sprint(e.Values["kind"], " ", e.Values["payload"])]++
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the stream has %v, want %v", got, want)
		}
	}
	p.stop()
}
