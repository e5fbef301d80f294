package cdc

import (
	"slices"
	"testing"
)

func TestWitness(t *testing.T) {
	var w Witness
	if w.Due(EndOfWAL) != nil || w.Pending(0) {
		t.Error("due without a look")
	}
	w.Look([]string{"1", "2", "3"}, 100)
	if w.Due(99) != nil || !w.Pending(99) {
		t.Error("due before what is confirmed has passed")
	}
	if got := w.Due(100); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("due is %v", got)
	}
	missed := w.Missed([]string{"1", "3"}, func(id string) bool { return id == "3" })
	if !slices.Equal(missed, []string{"1"}) {
		t.Errorf("missed are %v: 2 is marked by now, and 3 waits for its mark", missed)
	}
	if w.Due(EndOfWAL) != nil {
		t.Error("one look counts twice")
	}
}
