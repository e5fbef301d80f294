package protocol

import (
	"slices"

	"github.com/stagedoor/walrelay/cdc"
)

// recordBytes is what a record takes of the WAL: they begin at 10, 20, 30 …
const recordBytes = 10

// maxRows is how many rows a world has at most.
const maxRows = 5

// record is one record of the WAL: a transaction that inserts rows, or the mark
// of a row.
type record struct {
	mark   bool
	noise  bool  // none of ours
	hidden bool  // inserted while the publication was away
	row    int8  // of the first row: what tells rows apart, also where ids are issued again
	rows   int8  // how many
	id     int8  // of the first row, or of the one that is marked
	seq    int8  // tells transactions apart: with the xid, the commit's time
	at     int8  // tick
	slot   slot  // as it was just before
	xid    uint8 // issued again after a failover
}

// slot is the replication slot. Who holds it is part of it: 1 + the relay.
type slot struct {
	exists    bool
	lost      bool
	holder    int8
	start     cdc.LSN // where it began, and where it goes back to if PostgreSQL forgets
	confirmed cdc.LSN
}

// postgres is the primary. The table follows from the log.
type postgres struct {
	timeline uint32
	history  cdc.History
	wal      []record
	slot     slot
	locked   uint8 // ids that the application has locked
}

// row is a row of the table.
type row struct {
	row, id  int8
	lsn      cdc.LSN
	ordinal  uint64
	commit   cdc.Commit
	at       int8
	hidden   bool
	marked   bool
	markedAt int8
}

func lsnOf(index int) cdc.LSN { return cdc.LSN(recordBytes * (index + 1)) }

func (p *postgres) end() cdc.LSN { return lsnOf(len(p.wal)) }

func (r *record) commit(lsn cdc.LSN) cdc.Commit {
	return cdc.Commit{LSN: lsn, XID: uint32(r.xid), Time: cdc.Time(int64(r.seq))}
}

// table is the table as the log made it.
type table struct {
	rows [maxRows]row
	n    int
}

func (t *table) all() []row { return t.rows[:t.n] }

func (t *table) byID(id int8) *row {
	for i := range t.all() {
		if t.rows[i].id == id {
			return &t.rows[i]
		}
	}
	return nil
}

func (p *postgres) table() (t table) {
	for i := range p.wal {
		r := &p.wal[i]
		if r.noise {
			continue
		}
		if r.mark {
			if m := t.byID(r.id); m != nil {
				m.marked, m.markedAt = true, r.at
			}
			continue
		}
		for k := range r.rows {
			t.rows[t.n] = row{
				row: r.row + k, id: r.id + k, lsn: lsnOf(i), ordinal: uint64(k),
				commit: r.commit(lsnOf(i)), at: r.at, hidden: r.hidden,
			}
			t.n++
		}
	}
	return t
}

// write appends a record.
func (p *postgres) write(r record) {
	r.slot = p.slot
	r.slot.holder = 0
	p.wal = append(slices.Clip(p.wal), r)
}

// insert commits a transaction of the application.
func (p *postgres) insert(first, rows, seq, now int8, hidden bool) {
	xid, id := uint8(1), int8(0)
	for i := range p.wal {
		if r := &p.wal[i]; !r.mark && !r.noise {
			xid++
			id = max(id, r.id+r.rows)
		}
	}
	p.write(record{row: first, rows: rows, id: id, seq: seq, at: now, xid: xid, hidden: hidden})
}

// setMark is the marker's UPDATE: see outbox.Table.Mark.
func (p *postgres) setMark(id, now int8) cdc.MarkState {
	t := p.table()
	r := t.byID(id)
	switch {
	case r == nil || r.marked:
		return cdc.Marked
	case p.locked&(1<<id) != 0:
		return cdc.MarkLocked
	}
	p.write(record{mark: true, id: id, at: now})
	return cdc.Marked
}

func (p *postgres) server() cdc.Server {
	return cdc.Server{SystemID: "1", Timeline: p.timeline, History: p.history, Database: "shop", Version: 170000, WALEnd: p.end()}
}

// read is what pg_replication_slots says.
func (p *postgres) readSlot() *cdc.Slot {
	if !p.slot.exists {
		return nil
	}
	s := &cdc.Slot{Name: "walrelay", Active: p.slot.holder != 0, ConfirmedFlush: p.slot.confirmed, RestartLSN: p.slot.start, WALStatus: "reserved"}
	if p.slot.lost {
		s.WALStatus = "lost"
	}
	return s
}
