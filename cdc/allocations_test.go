package cdc

import (
	"fmt"
	"testing"

	"github.com/stagedoor/walrelay/internal/allocs"
)

// decoding decodes rows of a usual table, each in a transaction of its own, and
// all in one.
func decoding() []allocs.Stage {
	const rows = 1000
	row := func(i int) []byte {
		return insert(7, fmt.Sprint(100_000+i), "order.placed",
			fmt.Sprintf(`{"note": "two seats beside each other, please", "order": %d, "total": "42.00"}`, 100_000+i),
			"2026-01-01 00:00:00.000000+00", null)
	}
	table := relation(7, "public", "outbox", "id", "kind", "payload", "created_at", "published_at")
	const lsn, end = 0x1000, 0x1100
	begun, committed := begin(lsn, 1, 5), commit(lsn, end)
	apart, together := [][]byte{table}, [][]byte{table, begun}
	for i := range rows {
		apart = append(apart, begun, row(i), committed)
		together = append(together, row(i))
	}
	together = append(together, committed)
	stage := func(name string, messages [][]byte) allocs.Stage {
		d := NewDecoder()
		if _, err := d.Decode(messages[0]); err != nil {
			panic(err)
		}
		return allocs.Stage{Name: name, Rows: rows, Pass: func() {
			for _, m := range messages[1:] {
				if _, err := d.Decode(m); err != nil {
					panic(err)
				}
			}
		}}
	}
	return []allocs.Stage{
		stage("decode single-row transactions", apart),
		stage("decode 1000-row transactions", together),
	}
}

func TestAllocationsPerRow(t *testing.T) { allocs.Check(t, decoding()...) }

func BenchmarkDecode(b *testing.B) { allocs.Benchmark(b, decoding()...) }
