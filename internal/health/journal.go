package health

import "time"

const (
	// settles is how long a warning lasts before it is worth a line in the log:
	// a start and a reconnect are over sooner.
	settles = 3 * time.Second
	// repeats is how often it is said again while it lasts.
	repeats = 5 * time.Minute
)

// Journal picks from documents what belongs into a log: each change of the
// level once, and what is not ok again every five minutes. The zero Journal
// takes all to be ok.
type Journal struct {
	said      Status    // the level of the last entry; "" before the first document
	changedAt time.Time // when that was first said
	saidAt    time.Time // when it was last said
	level     Status    // of the last document
	since     time.Time // from when on it has been that
}

// Entry is one line of the log.
type Entry struct {
	Status, Before Status
	Again          bool          // nothing changed
	Lasted         time.Duration // since the level before was said, or with Again this one
}

// Step takes a document and the time, and reports whether there is something to
// be said.
func (j *Journal) Step(now time.Time, d Document) (Entry, bool) {
	if j.said == "" {
		j.said, j.changedAt, j.saidAt = StatusOK, now, now
	}
	if d.Status != j.level {
		j.level, j.since = d.Status, now
	}
	e := Entry{Status: d.Status, Before: j.said, Lasted: now.Sub(j.changedAt)}
	switch {
	case d.Status == j.said:
		if d.Status == StatusOK || now.Sub(j.saidAt) < repeats {
			return Entry{}, false
		}
		e.Again = true
	case d.Status == StatusWarn && now.Sub(j.since) < settles:
		return Entry{}, false
	}
	if !e.Again {
		j.said, j.changedAt = d.Status, now
	}
	j.saidAt = now
	return e, true
}
