package cdc

import (
	"encoding/json"
	"strconv"
	"time"
)

// AppendJSON appends the document of a checkpoint, which is what encoding/json
// makes of it, to b. A relay writes one with every append, so it is written by
// hand; what a relay that is well does not have is left to encoding/json.
//
// An error says that one of the times has no spelling in RFC 3339.
func (c *Checkpoint) AppendJSON(b []byte) ([]byte, error) {
	d := document{b: append(b, `{"format":`...)}
	d.b = strconv.AppendInt(d.b, int64(c.Format), 10)
	d.name("timeline")
	d.b = strconv.AppendUint(d.b, uint64(c.Timeline), 10)
	if len(c.History) > 0 {
		d.name("history")
		for i, s := range c.History {
			d.b = append(d.b, "[,"[min(i, 1)])
			d.b = append(d.b, `{"timeline":`...)
			d.b = strconv.AppendUint(d.b, uint64(s.Timeline), 10)
			d.name("lsn")
			d.lsn(s.LSN)
			d.b = append(d.b, '}')
		}
		d.b = append(d.b, ']')
	}
	d.name("phase")
	d.string(string(c.Phase))
	if !c.WrittenAt.IsZero() {
		d.name("written_at")
		d.time(c.WrittenAt)
	}
	if c.Standby {
		d.name("standby")
		d.b = append(d.b, "true"...)
	}
	if !c.Last.IsZero() {
		d.name("last")
		d.b = append(d.b, `{"lsn":`...)
		d.lsn(c.Last.LSN)
		d.name("ordinal")
		d.b = append(strconv.AppendUint(d.b, c.Last.Ordinal, 10), '}')
	}
	if c.LastCommit != (Commit{}) {
		d.name("last_commit")
		d.b = append(d.b, `{"lsn":`...)
		d.lsn(c.LastCommit.LSN)
		d.name("xid")
		d.b = strconv.AppendUint(d.b, uint64(c.LastCommit.XID), 10)
		d.name("time")
		d.time(c.LastCommit.Time)
		d.b = append(d.b, '}')
	}
	d.name("covered")
	d.lsn(c.Covered)
	if !c.CoveredTime.IsZero() {
		d.name("covered_time")
		d.time(c.CoveredTime)
	}
	if c.Token != "" {
		d.name("token")
		d.string(c.Token)
	}
	if c.Since != nil {
		d.name("since")
		d.any(c.Since)
	}
	if c.Generation != 0 {
		d.name("generation")
		d.b = strconv.AppendUint(d.b, c.Generation, 10)
	}
	if c.Consistent != 0 {
		d.name("consistent")
		d.lsn(c.Consistent)
	}
	if c.Foreign != nil {
		d.name("foreign")
		d.any(c.Foreign)
	}
	if c.Doubt != nil {
		d.name("doubt")
		d.any(c.Doubt)
	}
	if c.Blocked != nil {
		d.name("blocked")
		d.any(c.Blocked)
	}
	return append(d.b, '}'), d.err
}

// document is JSON that is being written, and the first error of it.
type document struct {
	b   []byte
	err error
}

// name begins a field that is not the first.
func (d *document) name(name string) {
	d.b = append(append(append(d.b, `,"`...), name...), `":`...)
}

func (d *document) lsn(l LSN) {
	d.b = append(l.append(append(d.b, '"')), '"')
}

func (d *document) time(t time.Time) {
	b, err := t.AppendText(append(d.b, '"'))
	if err != nil {
		d.err = err
		return
	}
	d.b = append(b, '"')
}

func (d *document) string(s string) {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			d.any(s) // it may need an escape
			return
		}
	}
	d.b = append(append(append(d.b, '"'), s...), '"')
}

func (d *document) any(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		d.err = err
		return
	}
	d.b = append(d.b, b...)
}
