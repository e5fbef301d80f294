package protocol

import (
	"fmt"
	"slices"
	"strings"
)

// finding is a way that ends badly.
type finding struct {
	problem string
	path    []action
	rest    bool // after the path, it was to come to rest
}

// result is what an exploration has done.
type result struct {
	states, restStates, depth int
	cut                       bool // there were more states than allowed
	heals                     int
	finding                   *finding
}

// node is how a state was reached first.
type node struct {
	parent int32
	action action
}

type reached struct {
	world *world
	node  int32
}

// explore visits every state that can be reached, nearest first, so that what
// it finds is the shortest way there.
func explore(s *settings, most int) (res result) {
	var e encoder
	first := newWorld(s)
	seen := map[uint64]struct{}{e.world(first): {}}
	nodes := []node{{parent: -1}}
	rested := map[uint64]struct{}{}
	level := []reached{{first, 0}}
	path := func(n int32) (path []action) {
		for ; nodes[n].parent >= 0; n = nodes[n].parent {
			path = append(path, nodes[n].action)
		}
		slices.Reverse(path)
		return path
	}
	var buf, relayBuf []action
	var w world
	for len(level) > 0 {
		var next []reached
		for _, at := range level {
			buf = at.world.actions(buf[:0])
			ticks := false
			for _, a := range buf {
				ticks = ticks || a.step == stepTick
				w = *at.world
				w.take(a)
				if w.problem != "" {
					res.finding = &finding{problem: w.problem, path: append(path(at.node), a)}
					return res
				}
				key := e.world(&w)
				if _, ok := seen[key]; ok {
					continue
				}
				seen[key] = struct{}{}
				nodes = append(nodes, node{at.node, a})
				kept := w
				next = append(next, reached{&kept, int32(len(nodes) - 1)})
				res.states++
				res.heals = max(res.heals, int(w.heals))
			}
			if _, more := at.world.next(&relayBuf); !more && !ticks {
				// Only time could go on, and the clock is at its end: from here
				// it has to come to rest. The states before go on to this one.
				w = *at.world
				if problem := rest(&w, &e, rested); problem != "" {
					res.finding = &finding{problem: problem, path: path(at.node), rest: true}
					return res
				}
			}
			if res.states > most {
				res.cut = true
				return res
			}
		}
		res.restStates = len(rested)
		level = next
		res.depth++
	}
	return res
}

// The bounds of coming to rest.
const (
	restTicks = 24
	restSteps = 2000
)

// rest lets the world go on without faults, in one order, until everything is
// as it has to be. What went the same way before is known to end well.
func rest(w *world, e *encoder, known map[uint64]struct{}) string {
	var way []uint64
	until := w.now + restTicks
	var buf []action
	for range restSteps {
		if e != nil {
			key := e.world(w)
			if _, ok := known[key]; ok {
				break
			}
			way = append(way, key)
		}
		lacks := w.lacking()
		if lacks == "" {
			break
		}
		if w.now == until {
			return "it does not come to rest: " + lacks
		}
		a, ok := w.next(&buf)
		if !ok {
			a = action{step: stepTick}
			w.noise()
		}
		w.take(a)
		if w.problem != "" {
			return w.problem
		}
		if len(way) == restSteps {
			return "it does not come to rest: it goes round and round"
		}
	}
	for _, key := range way {
		known[key] = struct{}{}
	}
	return ""
}

// next is what happens first when nothing goes wrong.
func (w *world) next(buf *[]action) (action, bool) {
	for id := range int8(maxRows) {
		if w.pg.locked&(1<<id) != 0 {
			return action{step: stepUnlock, a: id}, true
		}
	}
	for i := range w.settings.relays {
		*buf = w.relayActions(i, (*buf)[:0])
		if len(*buf) > 0 {
			return (*buf)[0], true
		}
	}
	return action{}, false
}

// noise is what a server writes now and then by itself. It is left out but
// where a relay needs it: to see that its WAL is another one.
func (w *world) noise() {
	if h := w.pg.slot.holder; h != 0 && w.relay[h-1].pc == pcStream {
		if s := &w.relay[h-1].s; !s.resume.Met() && s.pos == w.pg.end() {
			w.pg.write(record{noise: true})
		}
	}
}

// mustRest is for what is known to work.
func mustRest(w *world) {
	if problem := rest(w, nil, nil); problem != "" {
		panic(problem)
	}
}

// tell goes the way again and says what happens.
func (f *finding) tell(s *settings) string {
	w := newWorld(s)
	var lines []string
	w.trace = &lines
	for _, a := range f.path {
		w.take(a)
	}
	if f.rest {
		w.say("… and no more faults:")
		var buf []action
		for range 60 {
			if w.lacking() == "" || w.problem != "" {
				break
			}
			a, ok := w.next(&buf)
			if !ok {
				a = action{step: stepTick}
				w.noise()
			}
			w.take(a)
		}
	}
	var rows []string
	for _, e := range w.redis.entries {
		rows = append(rows, fmt.Sprint(e.row))
	}
	lines = append(lines, "the stream then has the rows "+strings.Join(rows, ", "), "PROBLEM: "+f.problem)
	return strings.Join(lines, "\n")
}
