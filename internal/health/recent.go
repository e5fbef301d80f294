package health

import "time"

// recentMost is how many transitions are kept.
const recentMost = 50

// Transition is a change of the level, as it was logged.
type Transition struct {
	At     time.Time `json:"at"`
	Status Status    `json:"status"`
	Before Status    `json:"before"`
	Lasted float64   `json:"lasted_seconds"` // of the level before
	Reason *string   `json:"reason"`         // the most important; nil for ok
	Cause  *string   `json:"cause"`
}

// Recent keeps the last transitions. The zero Recent has none.
type Recent struct{ kept []Transition }

// Keep takes what a Journal said of a document. What is said again is no
// transition.
func (r *Recent) Keep(at time.Time, e Entry, d Document) {
	if e.Again {
		return
	}
	t := Transition{At: at.UTC().Round(0), Status: e.Status, Before: e.Before, Lasted: e.Lasted.Seconds()}
	if e.Status != StatusOK {
		t.Reason, t.Cause = &d.Reasons[0], d.Cause
	}
	if len(r.kept) == recentMost {
		r.kept = r.kept[:copy(r.kept, r.kept[1:])]
	}
	r.kept = append(r.kept, t)
}

// List returns them as a copy, the last one first.
func (r *Recent) List() []Transition {
	list := make([]Transition, 0, len(r.kept))
	for i := len(r.kept); i > 0; i-- {
		list = append(list, r.kept[i-1])
	}
	return list
}
