package slot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/stagedoor/walrelay/cdc"
)

// statusTimeout bounds the writing of a status update. One is 39 bytes, so that
// only a connection that has been dead for long has no room for it.
const statusTimeout = 10 * time.Second

// The bytes that tell the messages of the streaming protocol apart.
// https://www.postgresql.org/docs/current/protocol-replication.html
const (
	byteWAL       = 'w'
	byteKeepalive = 'k'
	byteStatus    = 'r'

	byteBegin  = 'B' // the first of what a WAL message carries
	byteCommit = 'C'
)

// leastTransaction is the size in bytes of the smallest transaction with a row that
// has an id: Begin, an Insert of one empty value, and Commit, each of them with the
// header of a WAL message.
const leastTransaction = 51 + 43 + 56

// Stream is the flow of a slot. Gather, Receive and Status belong to one goroutine,
// Interrupt and Close may be called from any, at any time.
type Stream struct {
	conn              *pgconn.PgConn
	receiver          *receiver
	lowWater          *lowWater
	wire              *wire
	slot, publication string
	log               *slog.Logger

	open        bool      // a transaction has begun whose end was not received
	deadline    time.Time // for reading, as set on the connection
	ended       bool      // the server is gone
	interrupted atomic.Bool
	status      []byte
}

// Start streams from where the slot was last confirmed. The start position is
// left to the slot: one that is asked for could only skip.
func (s *Session) Start(ctx context.Context) (*Stream, error) {
	slot, err := s.Slot(ctx) // a foreign slot is not even asked
	if err != nil {
		return nil, err
	}
	if slot == nil {
		return nil, missing(s.cfg.Slot, nil)
	}
	if err := s.ensureFailover(ctx); err != nil {
		return nil, err
	}
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL 0/0 (proto_version '1', publication_names %s)",
		cdc.QuoteIdent(s.cfg.Slot), quoteOption(cdc.QuoteIdent(s.cfg.Publication)))
	if err := s.start(ctx, command); err != nil {
		if now, lookErr := s.Slot(ctx); lookErr == nil {
			slot = now
		}
		return nil, s.startError(err, slot)
	}
	s.stream = &Stream{
		conn:        s.repl,
		receiver:    s.receiver,
		lowWater:    newLowWater(s.repl.Conn()),
		wire:        s.wire,
		slot:        s.cfg.Slot,
		publication: s.cfg.Publication,
		log:         s.log,
	}
	return s.stream, nil
}

// start sends the command and waits until the connection has turned into a
// stream.
func (s *Session) start(ctx context.Context, command string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := s.repl.Conn().SetWriteDeadline(time.Now().Add(s.askTimeout)); err != nil {
		return err
	}
	s.repl.Frontend().SendQuery(&pgproto3.Query{String: command})
	if err := s.repl.Frontend().Flush(); err != nil {
		return err
	}
	if err := s.repl.Conn().SetWriteDeadline(time.Time{}); err != nil {
		return err
	}
	for {
		msg, err := s.repl.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(msg)
		default:
			return fmt.Errorf("the server answered START_REPLICATION with %T", msg)
		}
	}
}

// Gather waits until at least so many bytes have come, 64 KB at most, or the
// deadline; where only some were there, it may wait for as many more. It takes
// nothing: what has come is Receive's to return, and so is the end of the stream. It
// returns how many bytes are there.
//
// It must not be called again and again where few are. A server that sends small
// messages one by one has as many segments under way as TCP's congestion window
// allows, ten at least, which are three rows; the next ones go out when we have read.
func (st *Stream) Gather(bytes int, deadline time.Time) (int, error) {
	if err := st.until(deadline); err != nil {
		return 0, err
	}
	if missing := bytes - st.receiver.buffered(); missing > 0 && !st.interrupted.Load() {
		_ = st.lowWater.at(missing) // without the mark it is woken more often
		st.receiver.gather(bytes)
	}
	return st.receiver.buffered(), nil
}

// Receive returns the next message. It returns ok = false when there was none
// until the deadline, or when the stream was interrupted; a zero deadline waits
// for ever. With a deadline that has passed it may return messages that had
// arrived already, or none.
//
// Between two transactions it may leave what is not a row's, nor a hang-up, until the
// first call after the deadline, so a zero one is for tests: PostgreSQL sends a
// keepalive before and after most transactions, and the Begin by itself, and where
// processors are scarce, waking us for each delays the row.
//
// The deadline is set on the connection, which the driver does not notice: a
// context would cost a goroutine's start for each message. A read that is cut
// short in the middle of a message, also of a TLS record, goes on where it was.
func (st *Stream) Receive(deadline time.Time) (f cdc.Frame, ok bool, err error) {
	if err := st.until(deadline); err != nil {
		return cdc.Frame{}, false, err
	}
	for {
		// Invariant: looked at after the deadline was set. An Interrupt that
		// comes later than the look sets its own deadline after ours, and ends
		// the read.
		if st.interrupted.Load() {
			return cdc.Frame{}, false, nil
		}
		kind, body, err := st.next()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return cdc.Frame{}, false, nil
			}
			st.ended = true
			return cdc.Frame{}, false, st.streamError(err)
		}
		if kind == 'd' { // CopyData
			f, err := parseFrame(body)
			if len(f.WAL) > 0 && (f.WAL[0] == byteBegin || f.WAL[0] == byteCommit) {
				st.open = f.WAL[0] == byteBegin
			}
			f.More = st.receiver.more()
			return f, err == nil, err
		}
		if err := st.other(kind, body); err != nil {
			return cdc.Frame{}, false, err
		}
	}
}

// next reads the next message.
//
// Invariant: where fewer than leastTransaction bytes wake nobody, nothing of a message
// or a transaction was read, so that what there is of a row's comes to as many.
func (st *Stream) next() (kind byte, body []byte, err error) {
	if !st.open && st.receiver.buffered() == 0 {
		_ = st.lowWater.at(leastTransaction) // without the mark it is woken more often
		if err := st.receiver.fill(1); err != nil {
			return 0, nil, err
		}
	}
	if !st.receiver.more() {
		if err := st.lowWater.at(1); err != nil {
			return 0, nil, err
		}
	}
	return st.receiver.message()
}

// until sets the deadline for reading.
func (st *Stream) until(deadline time.Time) error {
	if deadline.Equal(st.deadline) {
		return nil
	}
	if err := st.conn.Conn().SetReadDeadline(deadline); err != nil {
		return st.streamError(err)
	}
	st.deadline = deadline
	return nil
}

// other takes a message that is no part of the flow. Its error ends the stream.
func (st *Stream) other(kind byte, body []byte) error {
	switch kind {
	case 'N':
		var notice pgproto3.NoticeResponse
		if err := notice.Decode(body); err != nil {
			return err
		}
		st.log.Warn("PostgreSQL says", "code", notice.Code, "message", notice.Message)
		return nil
	case 'S': // ParameterStatus
		return nil
	case 'E':
		var response pgproto3.ErrorResponse
		if err := response.Decode(body); err != nil {
			return err
		}
		st.ended = response.SeverityUnlocalized == "FATAL" || response.SeverityUnlocalized == "PANIC"
		return st.streamError(pgconn.ErrorResponseToPgError(&response))
	case 'c', 'C': // CopyDone, CommandComplete
		// A server that is stopping ends the stream in order when all was
		// confirmed.
		return fmt.Errorf("%w: it ended the stream", ErrShutdown)
	}
	return fmt.Errorf("the stream of slot %q holds a message of the type %q", st.slot, kind)
}

// parseFrame reads what a CopyData message carries.
func parseFrame(data []byte) (cdc.Frame, error) {
	switch {
	case len(data) >= 25 && data[0] == byteWAL:
		// Bytes 1 to 8 are where the WAL of the message starts. That plus its
		// length is not a position in the WAL, so it is not given out.
		return cdc.Frame{
			WAL:        data[25:],
			WALEnd:     cdc.LSN(binary.BigEndian.Uint64(data[9:])),
			ServerTime: serverTime(data[17:]),
		}, nil
	case len(data) == 18 && data[0] == byteKeepalive:
		return cdc.Frame{
			Keepalive:      true,
			WALEnd:         cdc.LSN(binary.BigEndian.Uint64(data[1:])),
			ServerTime:     serverTime(data[9:]),
			ReplyRequested: data[17] != 0,
		}, nil
	case len(data) == 0:
		return cdc.Frame{}, errors.New("the stream holds an empty message")
	}
	return cdc.Frame{}, fmt.Errorf("the stream holds a message of type %q and %d bytes", data[0], len(data))
}

func serverTime(data []byte) time.Time { return cdc.Time(int64(binary.BigEndian.Uint64(data))) }

// Status tells the server how far this connection has come. Confirmed is what
// it may forget: it must have been received over this connection, and 0 stands
// for nothing yet. Then all three positions are sent as 0, which the server
// takes for "unknown"; it moves nothing.
func (st *Stream) Status(received, confirmed cdc.LSN, askReply bool) error {
	if confirmed == 0 {
		received = 0
	}
	b := append(st.status[:0], 'd', 0, 0, 0, 38, byteStatus)
	b = binary.BigEndian.AppendUint64(b, uint64(received))
	b = binary.BigEndian.AppendUint64(b, uint64(confirmed))
	b = binary.BigEndian.AppendUint64(b, uint64(confirmed))
	b = binary.BigEndian.AppendUint64(b, uint64(cdc.Micros(time.Now())))
	reply := byte(0)
	if askReply {
		reply = 1
	}
	b = append(b, reply)
	st.status = b
	if err := st.conn.Conn().SetWriteDeadline(time.Now().Add(statusTimeout)); err != nil {
		return st.streamError(err)
	}
	if err := st.conn.Frontend().SendUnbufferedEncodedCopyData(b); err != nil {
		return st.streamError(err)
	}
	return nil
}

// Interrupt ends the current and every later Gather, and makes Receive return with
// ok = false. Status still works, so that the last one can be sent.
func (st *Stream) Interrupt() {
	st.interrupted.Store(true)
	// An error here means that the connection is closed, which ends Receive too.
	_ = st.conn.Conn().SetReadDeadline(time.Unix(1, 0))
}

// Close hangs up at once, without a goodbye, so that a PostgreSQL that is
// stopping does not wait for us. Receive returns an error. The session still
// has to be closed.
func (st *Stream) Close() { st.wire.cut() }

// finish ends the stream in order: the server has read the last status and let
// the slot go when it answers.
func (st *Stream) finish() {
	if st.ended || st.conn.IsClosed() {
		return
	}
	if err := st.conn.Conn().SetDeadline(time.Now().Add(2 * closeTimeout)); err != nil {
		return
	}
	if err := st.lowWater.at(1); err != nil { // the driver waits for each message
		return
	}
	st.conn.Frontend().Send(&pgproto3.CopyDone{})
	if err := st.conn.Frontend().Flush(); err != nil {
		return
	}
	for {
		msg, err := st.conn.ReceiveMessage(context.Background())
		if err != nil {
			return // hung up, or too slow
		}
		if _, ok := msg.(*pgproto3.ReadyForQuery); ok {
			return
		}
	}
}
