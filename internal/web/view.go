package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stagedoor/walrelay/internal/health"
)

// Names are what a relay calls what it works with; empty for what it does not
// use.
type Names struct {
	Table  string `json:"table"`
	Stream string `json:"stream"`
	Slot   string `json:"slot"`
}

// view is all of the page but its charts.
type view struct {
	Now     time.Time `json:"now"`
	Assets  string    `json:"assets"` // of the page that shows it: another one means that the page is of another release
	Version string    `json:"version"`
	Names   Names     `json:"names"`

	Health      health.Document `json:"health"`
	Stages      []health.Stage  `json:"stages"`
	Reasons     [][]part        `json:"reasons"` // those of health, taken apart
	Cause       []part          `json:"cause"`
	Transitions []transition    `json:"transitions"`
}

// transition is one whose sentences are taken apart.
type transition struct {
	health.Transition
	Reason []part `json:"reason"`
}

func (b *board) view(now time.Time, doc health.Document) view {
	v := view{
		Now: now.UTC(), Assets: assetsVersion, Version: b.cfg.Version, Names: b.cfg.Names,
		Health: doc, Stages: doc.Stages, Reasons: [][]part{}, Transitions: []transition{},
	}
	for _, r := range doc.Reasons {
		v.Reasons = append(v.Reasons, partsOf(r))
	}
	if doc.Cause != nil {
		v.Cause = partsOf(*doc.Cause)
	}
	if b.cfg.Transitions != nil {
		for _, t := range b.cfg.Transitions() {
			next := transition{Transition: t}
			if t.Reason != nil {
				next.Reason = partsOf(*t.Reason)
			}
			v.Transitions = append(v.Transitions, next)
		}
	}
	return v
}

// event is a server-sent event. JSON has no line break of its own.
func event(name string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the page's %s: %w", name, err)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, bytes.TrimSpace(data)), nil
}
