package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/match"
)

// oneColumn is an outbox that is only ids, and not marked.
type oneColumn struct{ Table }

// Check implements Table.
func (oneColumn) Check(context.Context) error { return nil }

// Marks implements Table.
func (oneColumn) Marks() bool { return false }

// Event implements Table.
func (oneColumn) Event(in *cdc.Insert) (cdc.Event, bool, error) {
	id := string(in.Values[0].Text)
	ev := cdc.Event{Position: in.Position, Commit: in.Commit, ID: id, Bytes: len(id)}
	if id == "refused" {
		ev.Unfit = &fault.Error{Problem: "it has no kind"}
	}
	return ev, id != "none of ours", nil
}

// Fields implements Table.
func (oneColumn) Fields() match.Fields { return match.Fields{{Name: "id", ID: true}} }

// ID implements Table.
func (oneColumn) ID(in *cdc.Insert) (string, bool, error) {
	id := string(in.Values[0].Text)
	return id, id != "none of ours", nil
}

// script feeds a decoding with what the server sends, and shows what the
// publisher would take off the queue.
type script struct {
	t    *testing.T
	d    *decoding
	sent func(cdc.Frame) error
}

// newScript starts over a slot that was confirmed up to the given position.
func newScript(t *testing.T, cp cdc.Checkpoint, confirmed cdc.LSN, markQueueBytes int) *script {
	t.Helper()
	r := New(Config{Table: oneColumn{}, MarkQueueBytes: markQueueBytes})
	d := &decoding{
		streaming: &streaming{Relay: r, resume: cdc.NewResume(cp, confirmed), floor: confirmed, queue: newQueue(1 << 20)},
		decoder:   cdc.NewDecoder(),
	}
	return &script{t: t, d: d, sent: d.frame}
}

// moment is when the transaction that commits at an LSN did so.
func moment(lsn cdc.LSN) time.Time { return cdc.Time(int64(lsn)) }

func commitAt(lsn cdc.LSN) cdc.Commit {
	return cdc.Commit{LSN: lsn, XID: uint32(lsn), Time: moment(lsn)}
}

// wal sends a pgoutput message. The end of WAL beside it is the server's own,
// far ahead, and means nothing.
func (s *script) wal(message []byte) error {
	return s.sent(cdc.Frame{WAL: message, WALEnd: 1 << 40})
}

func (s *script) keepalive(lsn cdc.LSN) error {
	return s.sent(cdc.Frame{Keepalive: true, WALEnd: lsn, ServerTime: moment(lsn)})
}

func (s *script) begin(lsn cdc.LSN) error {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(lsn)) // microseconds
	return s.wal(binary.BigEndian.AppendUint32(b, uint32(lsn)))
}

func (s *script) row(id string) error {
	b := append([]byte{'I', 0, 0, 0, 7, 'N', 0, 1, 't'}, binary.BigEndian.AppendUint32(nil, uint32(len(id)))...)
	return s.wal(append(b, id...))
}

func (s *script) commit(lsn, end cdc.LSN) error {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(end))
	return s.wal(binary.BigEndian.AppendUint64(b, uint64(lsn)))
}

func (s *script) relation() error {
	return s.wal([]byte("R\x00\x00\x00\x07public\x00outbox\x00d\x00\x01\x00id\x00\x00\x00\x00\x19\xff\xff\xff\xff"))
}

// transaction sends one that commits at lsn and ends at lsn + 10.
func (s *script) transaction(lsn cdc.LSN, ids ...string) error {
	if err := s.begin(lsn); err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.row(id); err != nil {
			return err
		}
	}
	return s.commit(lsn, lsn+10)
}

// ok fails the test for an error.
func (s *script) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// publishable is up to where everything would be published with the next so
// many rows on the stream. Rows that are only to be marked are in brackets.
func (s *script) publishable(rows int) string {
	var b batch
	b.items = s.d.queue.take(nil, rows, 1<<20)
	b.sort(true)
	var words []string
	for _, it := range b.items {
		switch it.kind {
		case itemRow:
			words = append(words, it.ev.ID)
		case itemSkip:
			words = append(words, "["+it.ev.ID+"]")
		}
	}
	if b.end != 0 {
		words = append(words, fmt.Sprintf("up to %d", b.end))
	}
	return strings.Join(words, " ")
}

// want compares what is publishable.
func (s *script) want(rows int, want string) {
	s.t.Helper()
	if got := s.publishable(rows); got != want {
		s.t.Errorf("with %d more rows published: %q, want %q", rows, got, want)
	}
}

// What is read after a row of a backlog may wait for more; what comes to readers
// who wait for it, or makes no entry, is read at once.
func TestRowsOfABacklogAreReadTogether(t *testing.T) {
	for name, tt := range map[string]struct {
		age  time.Duration
		id   string
		late bool
	}{
		"a row of a backlog":        {time.Minute, "a", true},
		"a row that has just come":  {lateAfter / 2, "a", false},
		"a clock that is behind":    {-time.Minute, "a", false},
		"an old row of no interest": {time.Minute, "none of ours", false},
	} {
		s := newScript(t, cdc.Checkpoint{}, 0, 0)
		frame := s.sent
		s.sent = func(f cdc.Frame) error {
			s.d.heard = time.Now()
			f.ServerTime = moment(100).Add(tt.age)
			return frame(f)
		}
		s.ok(s.relation())
		s.ok(s.transaction(100, tt.id))
		if s.d.late != tt.late {
			t.Errorf("%s: more is gathered: %v", name, s.d.late)
		}
	}
}

// A keepalive says that everything before it was sent, not that it was
// published: it waits behind the rows that came before it.
func TestKeepaliveBehindQueuedRowsConfirmsNothing(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.ok(s.relation())
	s.ok(s.transaction(100, "a", "b"))
	s.ok(s.keepalive(500))
	s.want(1, "a")
	s.ok(s.keepalive(600))
	s.want(1, "b")
	s.want(1, "up to 600")
}

func TestKeepaliveInsideATransactionConfirmsNothing(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.ok(s.relation())
	s.ok(s.begin(100))
	s.ok(s.keepalive(500))
	s.want(10, "")
	s.ok(s.row("a"))
	s.ok(s.keepalive(600))
	s.want(10, "a")
	if s.d.received != 0 {
		t.Errorf("reports %s as received in the middle of the first transaction", s.d.received)
	}
	s.ok(s.commit(100, 110))
	s.want(10, "up to 110")
	s.ok(s.keepalive(700))
	s.want(10, "up to 700")
	if s.d.received != 700 {
		t.Errorf("reports %s as received, want 0/%X", s.d.received, 700)
	}
}

// Only the ends of commits and keepalives are positions: not where a message
// lies, and not what the server says of its WAL's end beside it.
func TestOnlyCommitsAndKeepalivesMoveThePosition(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.ok(s.relation())
	s.ok(s.begin(100))
	s.ok(s.row("none of ours"))
	s.ok(s.row("a"))
	s.want(10, "a")
	s.ok(s.commit(100, 110))
	s.want(10, "up to 110")
	s.ok(s.keepalive(90)) // an older one never takes it back
	s.want(10, "up to 110")
	s.ok(s.transaction(110, "b")) // begins where the one before ended
	s.want(10, "b up to 120")
}

// A server that reads old WAL again is behind what it was told already. Told
// less, it would take the slot back.
func TestPositionBelowTheSlotCountsForNothing(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 100, 0)
	s.ok(s.relation())
	s.ok(s.keepalive(90))
	s.want(10, "")
	if s.d.received != 0 {
		t.Errorf("reports %s as received, over a slot that is confirmed up to 0/64", s.d.received)
	}
	s.ok(s.keepalive(100))
	s.want(10, "up to 100")
	s.ok(s.transaction(100, "a"))
	s.want(10, "a up to 110")
}

// What cannot be published comes after everything before it.
func TestRowThatCannotBePublishedNamesItsPlace(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.ok(s.relation())
	s.ok(s.begin(100))
	s.ok(s.row("a"))
	err := s.row("refused")
	for _, want := range []string{"the row with id refused", "row 1 of transaction 100 at 0/64", "it has no kind", "walrelay skip --id refused"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	var row *RowError
	if !errors.As(err, &row) || row.Row.Row != "refused" || row.Row.Position != (cdc.Position{LSN: 100, Ordinal: 1}) || row.Row.Reason != "it has no kind" {
		t.Errorf("the row is %+v", row)
	}
	s.want(10, "a")
}

// A request to skip a row is for one that cannot be published, and no other.
func TestOnlyRowsThatCannotBePublishedAreSkipped(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.d.skips = map[string]bool{"refused": true, "a": true}
	s.ok(s.relation())
	s.ok(s.transaction(100, "a", "refused", "b"))
	var got []string
	for _, it := range s.d.queue.take(nil, 10, 1<<20) {
		if it.kind == itemRow {
			got = append(got, fmt.Sprintf("%s dead=%v settled=%v", it.ev.ID, it.ev.Dead, it.ev.SkipAsked))
		}
	}
	want := "a dead=false settled=true, refused dead=true settled=true, b dead=false settled=false"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestCommandIsReadyForAShell(t *testing.T) {
	r := New(Config{Stream: "jobs"})
	for id, want := range map[string]string{
		"7":                   "--id 7",
		"-7":                  "--id=-7",
		"0/16B3748/2":         "--id 0/16B3748/2",
		"it's $(touch x); rm": `--id 'it'\''s $(touch x); rm'`,
		"":                    "--id ''",
		"größe":               "--id 'größe'",
	} {
		if err := r.rowError(cdc.Event{ID: id}, errors.New("why")); !strings.HasSuffix(err.Error(), "walrelay skip "+want) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// The entry of a skipped row is of a size that any Redis takes, and has its id.
func TestDeadEntryIsBounded(t *testing.T) {
	r := New(Config{Table: oneColumn{}})
	field := func(name string, n int) cdc.Field { return cdc.Field{Name: name, Value: string(make([]byte, n))} }
	ev := r.dead(cdc.Event{ID: "7", Position: cdc.Position{LSN: 0x16B3748, Ordinal: 2}, Fields: []cdc.Field{
		field("large", 300<<10), field("larger", 300<<10), field("id", 100<<10), field("small", 10), field("huge", 64<<20),
	}}, strings.Repeat("x", reasonBytes))
	var names []string
	size := 0
	for _, f := range ev.Fields {
		names = append(names, f.Name)
		size += len(f.Name) + len(f.Value)
	}
	if got := strings.Join(names, " "); got != "large id small walrelay_reason walrelay_position" {
		t.Errorf("it has the fields %s", got)
	}
	if last := ev.Fields[len(ev.Fields)-1]; string(last.Value) != "0/16B3748/2" {
		t.Errorf("it was at %s", last.Value)
	}
	if size > deadBytes {
		t.Errorf("it has %d bytes, want at most %d", size, deadBytes)
	}
}

func TestUnknownMessageStopsTheLine(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	if err := s.wal([]byte("z?")); !errors.Is(err, cdc.ErrUnknownMessage) || !permanent(err) {
		t.Errorf("got %v, want one that waits for an operator", err)
	}
}

// checkpointAt is a checkpoint whose last row is that of a transaction.
func checkpointAt(lsn cdc.LSN, ordinal uint64) cdc.Checkpoint {
	return cdc.Checkpoint{Last: cdc.Position{LSN: lsn, Ordinal: ordinal}, LastCommit: commitAt(lsn)}
}

// Rows that the stream has are marked only when the checkpoint's transaction
// was met: until then this can be another history, without them.
func TestRowsOfTheStreamAreMarkedOnceTheirHistoryIsKnown(t *testing.T) {
	s := newScript(t, checkpointAt(200, 0), 50, 0)
	s.ok(s.relation())
	s.ok(s.transaction(60, "a"))
	s.ok(s.keepalive(70))
	s.want(10, "")
	s.ok(s.transaction(100, "b", "c"))
	s.want(10, "")
	s.ok(s.begin(200))
	s.want(10, "[a] [b] [c]")
	s.ok(s.row("d"))
	s.ok(s.row("e"))
	s.ok(s.commit(200, 210))
	s.want(10, "[d] e up to 210")
	if got := s.d.status.skipped.Load(); got != 4 {
		t.Errorf("counts %d rows as skipped, want 4", got)
	}
}

func TestAnotherHistoryIsNeitherMarkedNorConfirmed(t *testing.T) {
	for name, pass := range map[string]func(*script) error{
		"another transaction commits there":      func(s *script) error { return s.transaction(200, "x") },
		"a later transaction comes instead":      func(s *script) error { return s.transaction(300, "x") },
		"a keepalive says that it will not come": func(s *script) error { return s.keepalive(300) },
	} {
		t.Run(name, func(t *testing.T) {
			cp := checkpointAt(200, 0)
			cp.LastCommit.XID = 4711
			s := newScript(t, cp, 50, 0)
			s.ok(s.relation())
			s.ok(s.transaction(60, "a"))
			if err := pass(s); !errors.Is(err, cdc.ErrHistory) {
				t.Errorf("got %v, want ErrHistory", err)
			}
			s.want(10, "")
			if s.d.received != 0 {
				t.Errorf("reports %s as received", s.d.received)
			}
		})
	}
}

// Holding rows back is bounded. Beyond the bound the WAL is read once more,
// with its history known.
func TestRowsBeyondTheBoundAreReadAgain(t *testing.T) {
	cp := checkpointAt(200, 0)
	s := newScript(t, cp, 50, 4*markBytes(cdc.Mark{ID: "a"}))
	s.ok(s.relation())
	s.ok(s.transaction(60, "a"))
	s.ok(s.transaction(100, "b"))
	if s.d.held != nil {
		t.Fatalf("holds %d rows beyond the bound", len(s.d.held))
	}
	if err := s.begin(200); !errors.Is(err, errReadAgain) {
		t.Fatalf("got %v, want to read again", err)
	}
	s.want(10, "")

	again := newScript(t, cp, 50, 0)
	again.d.Relay = s.d.Relay
	again.ok(again.relation())
	again.ok(again.transaction(60, "a"))
	again.ok(again.transaction(100, "b"))
	again.want(10, "[a] [b]")
	again.ok(again.transaction(200, "c", "d"))
	again.want(10, "[c] d up to 210")
}

// wide is an outbox whose rows have one field, the id.
type wide struct{ oneColumn }

// Event implements Table.
func (w wide) Event(in *cdc.Insert) (cdc.Event, bool, error) {
	ev, ok, err := w.oneColumn.Event(in)
	ev.Fields = []cdc.Field{{Name: "payload", Value: ev.ID}}
	return ev, ok, err
}

func TestRowThatRedisDoesNotTakeStopsTheLine(t *testing.T) {
	s := newScript(t, cdc.Checkpoint{}, 0, 0)
	s.d.cfg.Table, s.d.cfg.ValueBytes = wide{}, 5
	s.ok(s.relation())
	s.ok(s.begin(100))
	s.ok(s.row("12345"))
	err := s.row("123456")
	if err == nil || !permanent(err) || !strings.Contains(err.Error(), "id 123456") || !strings.Contains(err.Error(), "6 bytes") {
		t.Errorf("a row that is too large: %v", err)
	}
	s.want(10, "12345")
}
