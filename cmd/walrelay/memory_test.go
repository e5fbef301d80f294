package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The relay's peak memory with default settings does not depend on how much
// there is to carry: not on the rows of a transaction, nor on those that wait
// while Redis is stopped. Of large rows it holds a few at a time, however many
// there are.
func TestMemoryIsBounded(t *testing.T) {
	plain := buildPlain(t)
	for _, tt := range []struct {
		name   string
		redis  []string
		carry  func(*testing.T, *world)
		rows   int
		atMost int64 // bytes
	}{
		{
			name: "a transaction of a million rows", rows: 1_000_000, atMost: 64 << 20,
			carry: func(_ *testing.T, w *world) {
				w.exec(`INSERT INTO outbox (kind, payload) SELECT 'small', '{"n": 1}' FROM generate_series(1, 1000000)`)
			},
		},
		{
			name: "Redis is stopped while rows pile up", rows: 300_000, atMost: 64 << 20,
			// What was written survives the end of the process.
			redis: []string{"--appendonly", "yes", "--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"},
			carry: func(t *testing.T, w *world) {
				w.redis.Kill()
				for range 3 {
					w.exec(`INSERT INTO outbox (kind, payload) SELECT 'medium', to_jsonb(repeat('x', 1000)) FROM generate_series(1, 100000)`)
				}
				// The relay has heard of all that it is going to hold.
				if !w.hearsFor(w.walsender(), 3) {
					t.Error("PostgreSQL lost the relay")
				}
				w.redis.Start()
			},
		},
		{
			name: "rows of eight megabytes", rows: 30, atMost: 96 << 20,
			carry: func(_ *testing.T, w *world) {
				for range 10 {
					w.exec(`INSERT INTO outbox (kind, payload) SELECT 'large', to_jsonb(repeat('x', 8000000)) FROM generate_series(1, 3)`)
				}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, worldOptions{
				volatile: true, redisArgs: tt.redis,
				settings: map[string]string{"autovacuum": "off", "max_wal_size": "4GB"}, // nothing else to do
			})
			w.exec(`SELECT pg_drop_replication_slot('oracle')`) // would hold all of it
			p := w.startProgram(plain, nil, "run", "--postgres", w.dsn, "--redis", w.redis.URL(), "--http", "127.0.0.1:0")
			p.streams()
			tt.carry(t, w)
			w.carried(tt.rows)
			w.allMarked()
			peak := p.peak()
			t.Logf("peak memory: %.1f MiB", float64(peak)/(1<<20))
			if peak > tt.atMost {
				t.Errorf("peak memory is %d bytes, want at most %d", peak, tt.atMost)
			}
			p.stop()
			w.carried(tt.rows)
		})
	}
}

// carried waits until the stream has exactly so many entries, for as long as
// they become more.
func (w *world) carried(rows int) {
	w.t.Helper()
	client := w.redis.Client(w.t)
	last := int64(0)
	for last < int64(rows) {
		var n int64
		w.eventually(fmt.Sprintf("more than %d entries", last), func() error {
			var err error
			if n, err = client.XLen(context.Background(), "jobs").Result(); err == nil && n <= last {
				err = errors.New("not yet")
			}
			return err
		})
		last = n
	}
	if last > int64(rows) {
		w.t.Errorf("the stream has %d entries of %d rows", last, rows)
	}
}

// buildPlain builds walrelay as it is released: the race detector multiplies
// the memory that a program takes.
func buildPlain(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "walrelay")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build walrelay: %v\n%s", err, out)
	}
	return path
}

// peak is the most memory that the relay has had so far, in bytes.
func (p *relayProcess) peak() int64 {
	p.t.Helper()
	n, err := peakMemory(p.cmd.Process.Pid)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// peakMemory reads a process' peak resident set size.
// https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
func peakMemory(pid int) (int64, error) {
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			return kilobytes << 10, err
		}
	}
	return 0, errors.New("the kernel does not tell the peak memory")
}
