package relay

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/allocs"
	"github.com/stagedoor/walrelay/outbox"
)

// mapped is an outbox with the usual columns, and not marked.
type mapped struct {
	Table
	rows *outbox.Table
}

// Marks implements Table.
func (mapped) Marks() bool { return false }

// Event implements Table.
func (m mapped) Event(in *cdc.Insert) (cdc.Event, bool, error) { return m.rows.Event(in) }

// batching takes rows from frames of the connection to batches that are ready to
// be appended, with all that is between: each row in a transaction of its own,
// and all in one.
func batching() []allocs.Stage {
	const rows, batches = 1000, 5
	u32, u64 := binary.BigEndian.AppendUint32, binary.BigEndian.AppendUint64
	begin := u32(u64(u64([]byte{'B'}, 0x1000), 1), 5)
	commit := u64(u64(u64([]byte{'C', 0}, 0x1000), 0x1100), 1)
	table := []byte("R\x00\x00\x00\x07public\x00outbox\x00d\x00\x05")
	for _, column := range []string{"id", "kind", "payload", "created_at", "published_at"} {
		table = u32(u32(append(append(append(table, 0), column...), 0), 25), 0xffffffff)
	}
	row := func(i int) []byte {
		b := append(u32([]byte{'I'}, 7), 'N', 0, 5)
		for _, text := range []string{
			fmt.Sprint(100_000 + i), "order.placed",
			fmt.Sprintf(`{"note": "two seats beside each other, please", "order": %d, "total": "42.00"}`, 100_000+i),
			"2026-01-01 00:00:00.000000+00",
		} {
			b = append(u32(append(b, 't'), uint32(len(text))), text...)
		}
		return append(b, 'n')
	}
	apart, together := [][]byte{table}, [][]byte{table, begin}
	for i := range rows {
		apart = append(apart, begin, row(i), commit)
		together = append(together, row(i))
	}
	together = append(together, commit)

	stage := func(name string, messages [][]byte) allocs.Stage {
		perBatch := len(messages) / batches
		log := slog.New(slog.DiscardHandler)
		r := New(Config{Table: mapped{rows: outbox.New(outbox.Config{
			Table: cdc.Table{Schema: "public", Name: "outbox"}, Mapping: outbox.DefaultMapping(), Mark: outbox.MarkNone,
		}, log)}, Log: log})
		d := &decoding{
			streaming: &streaming{Relay: r, resume: cdc.NewResume(cdc.Checkpoint{}, 0), queue: newQueue(r.cfg.QueueBytes)},
			decoder:   cdc.NewDecoder(),
		}
		receive := func(message []byte) {
			if err := d.frame(cdc.Frame{WAL: message}); err != nil {
				panic(err)
			}
		}
		receive(messages[0])
		var b batch
		return allocs.Stage{Name: name, Rows: rows, Pass: func() {
			taken := 0
			for i, m := range messages[1:] {
				receive(m)
				if i%perBatch != perBatch-1 && i != len(messages)-2 {
					continue
				}
				b.items = d.queue.take(b.items, rows, r.cfg.BatchBytes)
				b.sort(false)
				taken += len(b.events)
				clear(b.items)
			}
			if taken != rows {
				panic("rows are missing")
			}
		}}
	}
	return []allocs.Stage{
		stage("batch single-row transactions", apart),
		stage("batch 1000-row transactions", together),
	}
}

func TestAllocationsPerRow(t *testing.T) { allocs.Check(t, batching()...) }

func BenchmarkBatch(b *testing.B) { allocs.Benchmark(b, batching()...) }
