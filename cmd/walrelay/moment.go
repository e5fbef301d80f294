package main

import (
	"errors"
	"time"
)

// moment is a time, or how long ago it was.
type moment struct {
	at    time.Time
	ago   time.Duration
	isAgo bool
}

// isZero reports whether nothing was given.
func (m moment) isZero() bool { return m.at.IsZero() && !m.isAgo }

// time is the moment by a clock that shows now; zero where nothing was given.
func (m moment) time(now time.Time) time.Time {
	if m.isAgo {
		return now.Add(-m.ago)
	}
	return m.at
}

// momentLayouts are what a time may look like. Without a zone it is UTC.
func momentLayouts() []string {
	return []string{
		time.RFC3339Nano, "2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07",
		"2006-01-02T15:04:05", "2006-01-02 15:04:05.999999", "2006-01-02 15:04", "2006-01-02",
	}
}

func parseMoment(s string) (moment, error) {
	for _, layout := range momentLayouts() {
		if at, err := time.Parse(layout, s); err == nil {
			return moment{at: at}, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return moment{}, errors.New("want a time such as 2026-07-31T18:00:00Z (UTC without a zone), or how long ago it was, such as 90m or 24h")
	}
	return moment{ago: d, isAgo: true}, nil
}
