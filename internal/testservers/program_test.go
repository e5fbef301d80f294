package testservers

import (
	"fmt"
	"testing"
)

func TestProgramCleansUpAllTheSame(t *testing.T) {
	p := &Program{}
	var order []int
	p.Cleanup(func() { order = append(order, 1) })
	p.Cleanup(func() { p.Fatalf("the second") })
	p.Cleanup(func() { order = append(order, 3) })
	err := p.Close()
	if err == nil || err.Error() != "the second" || !p.Failed() {
		t.Errorf("ended with %v", err)
	}
	if fmt.Sprint(order) != "[3 1]" {
		t.Errorf("cleaned up in the order %v", order)
	}
}
