package web

import (
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// counts are the values that a native histogram counted, by bucket. Bucket i
// holds what is at most 2^(i/2^schema), and more than the one before it.
//
// https://prometheus.io/docs/specs/native_histograms/
type counts struct {
	schema  int32
	zero    uint64
	buckets map[int]uint64
}

func countsOf(h *dto.Histogram) counts {
	c := counts{schema: h.GetSchema(), zero: h.GetZeroCount(), buckets: map[int]uint64{}}
	index, count, deltas := 0, int64(0), h.GetPositiveDelta()
	for _, span := range h.GetPositiveSpan() {
		index += int(span.GetOffset())
		for range span.GetLength() {
			count += deltas[0]
			deltas = deltas[1:]
			c.buckets[index] = uint64(count)
			index++
		}
	}
	return c
}

// coarser merges neighbours until the schema is this one. A histogram with too
// many buckets has become coarser itself.
func (c counts) coarser(schema int32) counts {
	for c.schema > schema {
		merged := make(map[int]uint64, len(c.buckets))
		for i, n := range c.buckets {
			merged[(i+1)>>1] += n
		}
		c.schema, c.buckets = c.schema-1, merged
	}
	return c
}

// since is what was counted after an earlier moment.
func (c counts) since(before counts) counts {
	before = before.coarser(c.schema)
	d := counts{schema: c.schema, zero: c.zero - before.zero, buckets: make(map[int]uint64, len(c.buckets))}
	for i, n := range c.buckets {
		if n -= before.buckets[i]; n > 0 {
			d.buckets[i] = n
		}
	}
	return d
}

// quantile is the value below which a part of what was counted lies, taken as
// spread evenly over the powers in a bucket; NaN where nothing was counted.
func (c counts) quantile(part float64) float64 {
	total := c.zero
	indexes := make([]int, 0, len(c.buckets))
	for i, n := range c.buckets {
		total += n
		indexes = append(indexes, i)
	}
	if total == 0 {
		return math.NaN()
	}
	slices.Sort(indexes)
	rank := part*float64(total) - float64(c.zero)
	if rank <= 0 && c.zero > 0 {
		return 0
	}
	width := math.Ldexp(1, -int(c.schema))
	last := 0.0
	for _, i := range indexes {
		n := float64(c.buckets[i])
		last = math.Exp2(float64(i) * width)
		if rank <= n {
			return math.Exp2((float64(i) - 1 + rank/n) * width)
		}
		rank -= n
	}
	return last
}
