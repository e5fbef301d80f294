package publisher

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
)

// mostFields is how many fields an entry has at most: Lua's stack holds 8000
// values, and beyond that a script ends in the middle.
const mostFields = 2000

// script is a Lua script that takes entries.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source)) // by which Redis knows it
	return script{source, hex.EncodeToString(sum[:])}
}

// call is one call of a script, as it goes to Redis. It is used again and again:
// an entry is not copied into it, and costs no allocation.
type call struct {
	args     []any
	document []byte
}

var calls = sync.Pool{New: func() any { return new(call) }}

// newCall begins a call with these keys and settings to follow.
func newCall(keys int) *call {
	c := calls.Get().(*call)
	c.args = append(c.args[:0], nil, nil, keys)
	return c
}

// free ends the use of a call. Redis has it by then, or the connection is closed:
// the client writes in the goroutine that waits for the reply.
func (c *call) free() {
	clear(c.args) // it must not keep the entries
	calls.Put(c)
}

// add adds settings.
func (c *call) add(args ...any) { c.args = append(c.args, args...) }

// addEvents adds events in runs of the same stream and the same names, and
// returns how many bytes their fields have. The dead ones go to the stream of the
// index dead. The events must not change before the call is free.
func (c *call) addEvents(events []cdc.Event, dead int) (size int) {
	var first *cdc.Event // of the run
	var at, count int    // where its number of entries is, and that
	for i := range events {
		ev := &events[i]
		if first == nil || !sameShape(first, ev) {
			if first != nil {
				c.args[at] = count
			}
			stream := 1
			if ev.Dead {
				stream = dead
			}
			first, at, count = ev, len(c.args)+1, 0
			c.args = append(c.args, stream, nil, 2*len(ev.Fields))
		}
		count++
		for j := range ev.Fields {
			f := &ev.Fields[j]
			if first == ev {
				c.args = append(c.args, &f.Name)
				size += len(f.Name)
			}
			c.args = append(c.args, &f.Value)
			size += len(f.Value)
		}
	}
	if first != nil {
		c.args[at] = count
	}
	return size
}

// sameShape reports whether two events have the same stream and the same names.
func sameShape(a, b *cdc.Event) bool {
	if a.Dead != b.Dead || len(a.Fields) != len(b.Fields) {
		return false
	}
	for i := range a.Fields {
		if a.Fields[i].Name != b.Fields[i].Name {
			return false
		}
	}
	return true
}

// tooWide is why Redis never takes one of the events; empty where it may.
func tooWide(events []cdc.Event) string {
	for i := range events {
		if n := len(events[i].Fields); n > mostFields {
			return fmt.Sprintf("an entry has %d fields, and at most %d can be appended", n, mostFields)
		}
	}
	return ""
}

// run has Redis run the script, which is sent only where Redis does not know it.
func (c *call) run(ctx context.Context, client redis.UniversalClient, s script) ([]any, error) {
	c.args[0], c.args[1] = "evalsha", s.hash
	reply, err := c.once(ctx, client)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		c.args[0], c.args[1] = "eval", s.source
		reply, err = c.once(ctx, client)
	}
	return reply, err
}

func (c *call) once(ctx context.Context, client redis.UniversalClient) ([]any, error) {
	cmd := redis.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(3)
	_ = client.Process(ctx, cmd) // cmd has the error
	return cmd.Slice()
}
