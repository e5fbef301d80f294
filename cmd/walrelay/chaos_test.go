package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// step is one disruption of a schedule.
type step struct {
	disruption
	seed uint64 // of its choices
}

// deck deals each disruption once in a random order, and then each once more.
type deck struct {
	all  []disruption
	left []int
}

func (d *deck) deal(rng *rand.Rand) (disruption, bool) {
	if len(d.all) == 0 {
		return disruption{}, false
	}
	if len(d.left) == 0 {
		d.left = rng.Perm(len(d.all))
	}
	next := d.all[d.left[0]]
	d.left = d.left[1:]
	return next, true
}

// scheduler makes schedules: the same ones for the same seed.
type scheduler struct {
	rng              *rand.Rand
	harmless, losses deck
	n                int
}

func newScheduler(seed uint64, only []string) *scheduler {
	choose := func(from []disruption) deck {
		if len(only) == 0 {
			return deck{all: from}
		}
		return deck{all: slices.DeleteFunc(slices.Clone(from), func(d disruption) bool { return !slices.Contains(only, d.name) })}
	}
	return &scheduler{rng: rand.New(rand.NewPCG(seed, 0)), harmless: choose(harmless), losses: choose(losses)}
}

// next is a schedule of three to six disruptions. After every fourth of them
// nothing is missing.
func (s *scheduler) next() (n int, steps []step) {
	n = s.n
	s.n++
	length := 3 + s.rng.IntN(4)
	lossy := 1 + s.rng.IntN(length-1)
	if n%4 == 0 {
		lossy = 0
	}
	for i := range length {
		from := &s.harmless
		if i < lossy {
			from = &s.losses
		}
		if d, ok := from.deal(s.rng); ok {
			steps = append(steps, step{d, s.rng.Uint64()})
		}
	}
	s.rng.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	return n, steps
}

const (
	// stages is how many sets of servers work at the same time.
	stages = 3
	// schedulesPerStage is how many schedules share their servers.
	schedulesPerStage = 8
	// tries is how often a short run tries a disruption that does not take effect.
	tries = 4
)

// Whatever breaks, in whatever order: each row that was committed is on the
// stream once and in commit order, but for what the README excepts. A short run
// takes half of what can break, a long one all of it.
//
// WALRELAY_TEST_SEED repeats a run, WALRELAY_TEST_FIRST begins with its N-th
// schedule, WALRELAY_TEST_MINUTES makes it longer, WALRELAY_TEST_ONLY names the
// only disruptions, separated by commas.
func TestNothingLostWhateverBreaks(t *testing.T) {
	t.Parallel()
	c := &chaos{
		seed: number(t, "WALRELAY_TEST_SEED", uint64(time.Now().UnixNano())), began: time.Now(),
		did: map[string]int{}, doing: map[string]int{}, took: map[string]int{}, heals: map[string]int{}, operator: map[string]int{},
	}
	var only []string
	if names := os.Getenv("WALRELAY_TEST_ONLY"); names != "" {
		only = strings.Split(names, ",")
	}
	if len(only) == 0 && number(t, "WALRELAY_TEST_MINUTES", 0) == 0 && os.Getenv("WALRELAY_TEST_LONG") == "" {
		only = someOf(c.seed)
	}
	c.scheduler = newScheduler(c.seed, only)
	for range number(t, "WALRELAY_TEST_FIRST", 0) {
		c.scheduler.next()
	}
	minutes := number(t, "WALRELAY_TEST_MINUTES", 0)
	if minutes == 0 && os.Getenv("WALRELAY_TEST_LONG") != "" {
		minutes = 20
	}
	if minutes > 0 {
		c.until = c.began.Add(time.Duration(minutes) * time.Minute)
	}
	t.Run("stage", func(t *testing.T) {
		for i := range stages {
			t.Run(strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				for c.more() && !t.Failed() {
					t.Run("servers", c.stage)
				}
			})
		}
	})
	c.report(t)
	for _, d := range slices.Concat(c.scheduler.harmless.all, c.scheduler.losses.all) {
		// A long run that was not long enough for one has tried it a few times at most.
		if !t.Failed() && c.took[d.name] == 0 && (c.did[d.name] >= tries || minutes == 0) {
			t.Errorf("%q was tried %d times and never took effect", d.name, c.did[d.name])
		}
	}
}

// someOf are the disruptions of a short run: half of each kind, another half for
// another seed.
func someOf(seed uint64) (names []string) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, all := range [][]disruption{harmless, losses} {
		for _, i := range rng.Perm(len(all))[:(len(all)+1)/2] {
			names = append(names, all[i].name)
		}
	}
	return names
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// chaos is a run of the suite.
type chaos struct {
	seed  uint64
	began time.Time
	until time.Time // of a long run; a short one has each disruption once

	mu        sync.Mutex
	scheduler *scheduler
	failed    bool

	schedules, rows, lost, forgotten int
	did, doing, took                 map[string]int // by disruption
	heals                            map[string]int // by kind of gap
	operator                         map[string]int // what the operator ran
}

// more reports whether there is another schedule to run.
func (c *chaos) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed || !c.until.IsZero() {
		return !c.failed && time.Now().Before(c.until)
	}
	return len(c.due()) > 0
}

// due are the disruptions that a short run still has to try.
func (c *chaos) due() (due []disruption) {
	for _, d := range slices.Concat(c.scheduler.harmless.all, c.scheduler.losses.all) {
		if c.did[d.name] == 0 || c.took[d.name] == 0 && c.doing[d.name] == 0 && c.did[d.name] < tries {
			due = append(due, d)
		}
	}
	return due
}

// next deals the next schedule, and counts its disruptions as tried.
func (c *chaos) next() (n int, steps []step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, steps = c.scheduler.next()
	if c.until.IsZero() { // without those that have been seen to work
		due := c.due()
		steps = slices.DeleteFunc(steps, func(s step) bool {
			return !slices.ContainsFunc(due, func(d disruption) bool { return d.name == s.name })
		})
	}
	for _, s := range steps {
		c.did[s.name]++
		c.doing[s.name]++
	}
	return n, steps
}

// stage runs schedules on servers of their own.
func (c *chaos) stage(t *testing.T) {
	s := newStage(t)
	s.rng = rand.New(rand.NewPCG(c.seed, 1))
	s.start()
	if s.streaming() == nil {
		t.Fatal("the relay does not stream")
	}
	s.write()
	for i := 0; i < schedulesPerStage && c.more(); i++ {
		if err := c.schedule(t, s); err != nil {
			c.mu.Lock()
			c.failed = true
			c.mu.Unlock()
			t.Fatal(err)
		}
	}
	s.writers.end()
	_, heals := backfills(s.logs())
	c.mu.Lock()
	defer c.mu.Unlock()
	for kind, n := range heals {
		c.heals[kind] += n
	}
	for what, n := range s.operator {
		c.operator[what] += n
	}
	c.rows += len(s.ledger.rows)
	for _, r := range s.ledger.rows {
		if r.lost {
			c.lost++
		}
		if r.forgotten {
			c.forgotten++
		}
	}
}

// schedule runs one schedule and compares.
func (c *chaos) schedule(t *testing.T, s *stage) error {
	n, steps := c.next()
	if len(steps) == 0 {
		return nil
	}
	began := time.Now()
	var said []string
	defer func() {
		if t.Failed() {
			t.Logf("it was schedule %d of seed %d\n  %s", n, c.seed, strings.Join(said, "\n  "))
		}
	}()
	for _, step := range steps {
		s.rng = rand.New(rand.NewPCG(step.seed, 0))
		s.moment()
		said = append(said, fmt.Sprintf("%s  %s", time.Now().UTC().Format("15:04:05.000"), step.name))
		took := step.do(s)
		c.mu.Lock()
		c.doing[step.name]--
		if took {
			c.took[step.name]++
		} else {
			said[len(said)-1] += ": took no effect"
		}
		c.mu.Unlock()
	}
	disrupted := time.Now()
	if err := s.balance(); err != nil {
		return fmt.Errorf("schedule %d of seed %d: %w\nafter the disruptions\n  %s\nrepeat it with: make chaos SEED=%d FIRST=%d",
			n, c.seed, err, strings.Join(said, "\n  "), c.seed, n)
	}
	c.mu.Lock()
	c.schedules++
	c.mu.Unlock()
	t.Logf("schedule %d: %d rows so far, %.1f s of disruptions, %.1f s to recover\n  %s", n, len(s.ledger.rows),
		disrupted.Sub(began).Seconds(), time.Since(disrupted).Seconds(), strings.Join(said, "\n  "))
	s.write()
	return nil
}

func (c *chaos) report(t *testing.T) {
	t.Logf("seed %d: %d schedules in %s, %d rows committed, %d lost with a primary, %d that Redis forgot beyond what can be known",
		c.seed, c.schedules, time.Since(c.began).Round(time.Second), c.rows, c.lost, c.forgotten)
	for _, name := range slices.Sorted(maps.Keys(c.did)) {
		t.Logf("  %3d of %3d took effect: %s", c.took[name], c.did[name], name)
	}
	for _, kind := range slices.Sorted(maps.Keys(c.heals)) {
		t.Logf("  %3d healed: %s", c.heals[kind], kind)
	}
	for _, what := range slices.Sorted(maps.Keys(c.operator)) {
		t.Logf("  %3d times the operator: walrelay %s", c.operator[what], what)
	}
}
