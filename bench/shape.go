package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
)

// shape is how the rows of a drain look and are committed.
type shape struct {
	Name        string `json:"name"`
	Rows        int    `json:"rows"`
	Transaction int    `json:"rows_per_transaction"`
	Body        int    `json:"body_bytes"` // of the text that makes a payload long; 0 for the usual payload
}

// shapes are those that are drained, at full scale.
func shapes() []shape {
	return []shape{
		{Name: "single", Rows: 200_000, Transaction: 1},
		{Name: "thousands", Rows: 1_000_000, Transaction: 1000},
		{Name: "one", Rows: 1_000_000, Transaction: 1_000_000},
		{Name: "1kb", Rows: 200_000, Transaction: 1, Body: 1000},
		{Name: "100kb", Rows: 10_000, Transaction: 1, Body: 100_000},
	}
}

// scaled is the shape with a fraction of its rows.
func (s shape) scaled(scale float64) shape {
	whole := s.Transaction == s.Rows
	s.Rows = max(10, int(float64(s.Rows)*scale))
	if s.Transaction > 1 {
		s.Transaction = max(2, int(float64(s.Transaction)*scale))
	}
	if whole {
		s.Transaction = s.Rows
	}
	return s
}

// title says it to people.
func (s shape) title() string {
	rows := grouped(int64(s.Rows))
	text := rows + " single-row transactions"
	switch {
	case s.Transaction == s.Rows:
		text = "one transaction of " + rows + " rows"
	case s.Transaction > 1:
		text = fmt.Sprintf("%s transactions of %s rows", grouped(int64(s.Rows/s.Transaction)), grouped(int64(s.Transaction)))
	}
	if s.Body > 0 {
		text += fmt.Sprintf(", payloads of %s KB", grouped(int64(s.Body/1000)))
	}
	return text
}

const kind = "order.placed"

// payload is that of row i, from 1 on, as PostgreSQL prints a jsonb: so that what
// never saw a database appends the same bytes.
func (s shape) payload(i int) string {
	if s.Body > 0 {
		return fmt.Sprintf(`{"body": "%s", "order": %d}`, body(s.Body), i)
	}
	return fmt.Sprintf(`{"note": "two seats beside each other, please", "items": [{"sku": "T-%05d", "count": %d}], "order": %d, "total": "%d.%02d", "currency": "EUR", "customer": %d}`,
		i%31337, 1+i%4, 100_000+i, 20+i%180, i%100, i%997)
}

// body is a text that does not compress, the same in every row and every run.
// PostgreSQL compresses each row for itself.
var body = func() func(int) string {
	var mu sync.Mutex
	made := map[int]string{}
	return func(size int) string {
		mu.Lock()
		defer mu.Unlock()
		if made[size] == "" {
			const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
			random := rand.New(rand.NewPCG(1, 2))
			var b strings.Builder
			for range size {
				b.WriteByte(letters[random.IntN(len(letters))])
			}
			made[size] = b.String()
		}
		return made[size]
	}
}()
