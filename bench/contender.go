package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
)

// contender is a way to drain a backlog.
type contender struct {
	Name string `json:"name"`
	key  string // as the command line names it

	// writes says that it changes the table, so that it gets a server of its own
	// whose data is put back before each run. The others read one log.
	writes bool
	// slow says that it may be cut off: its rate is that of what it had done.
	slow bool
	// follows says that it reads the log, by a slot.
	follows bool
	// appends says that it appends to the stream.
	appends bool
	// marks says that it is over only when all rows are marked.
	marks bool

	start func(*drainStage) (process, error)
}

// Keys of contenders that others are compared with.
const (
	keyLimit    = "recvlogical" // PostgreSQL's own limit
	keyPipeline = "xadd"        // Redis' limit
	keyRun      = "run"
	keyMarks    = "run-marks"
	keyPoll     = "poll"
	keyLeast    = "least"
)

// contenders begins with the one that the others are compared with.
func contenders() []contender {
	return []contender{
		{Name: "pg_recvlogical -f /dev/null", key: keyLimit, follows: true, start: startRecvlogical},
		{Name: "pipelined XADD", key: keyPipeline, appends: true, start: startPipeline},
		{Name: "walrelay run --mark none", key: keyRun, follows: true, appends: true, start: startRun},
		{Name: "walrelay run", key: keyMarks, writes: true, slow: true, follows: true, appends: true, marks: true, start: startRun},
		{Name: "walrelay poll", key: keyPoll, writes: true, slow: true, appends: true, start: startPoll},
		{Name: "least code", key: keyLeast, slow: true, follows: true, appends: true, start: startLeast},
	}
}

// nameOf is what the tables call a contender.
func nameOf(key string) string {
	for _, c := range contenders() {
		if c.key == key {
			return c.Name
		}
	}
	return key
}

// startRecvlogical has PostgreSQL's own program receive the log and throw it
// away. It ends when it has all.
// https://www.postgresql.org/docs/current/app-pgrecvlogical.html
func startRecvlogical(s *drainStage) (process, error) {
	cmd := s.recvlogical("/dev/null")
	return startProgram(cmd, s.dir)
}

func (s *drainStage) recvlogical(file string) *exec.Cmd {
	pg := s.server
	return exec.Command(filepath.Join(pg.BinDir(), "pg_recvlogical"),
		"--host", "127.0.0.1", "--port", strconv.Itoa(pg.Port()), "--username", "postgres", "--dbname", database, "--no-password",
		"--start", "--slot", benchSlot, "--file", file, "--endpos", s.end, "--no-loop",
		"--option", "proto_version=1", "--option", "publication_names="+publication)
}

// startPipeline appends the entries without a database.
func startPipeline(s *drainStage) (process, error) { return s.startWork(keyPipeline) }

// startLeast runs the least code that works.
func startLeast(s *drainStage) (process, error) { return s.startWork(keyLeast) }

func (s *drainStage) startWork(key string) (process, error) {
	w := work{
		Contender: key, Postgres: s.server.DSN(database), Slot: benchSlot, Publication: publication,
		RedisURL: s.redis.URL(), RedisAddr: s.redis.Addr(), Stream: stream, Shape: s.shape,
	}
	cmd, err := w.command()
	if err != nil {
		return nil, err
	}
	return startProgram(cmd, s.dir)
}

// startRun runs the relay, over a slot and a checkpoint as they were before the
// rows were written.
func startRun(s *drainStage) (process, error) {
	marks := "none"
	if s.contender.marks {
		marks = "published-at"
	}
	return s.startRelay("run", "--slot", benchSlot, "--mark", marks)
}

// startPoll runs the polling relay without its pause.
func startPoll(s *drainStage) (process, error) {
	return s.startRelay("poll", "--poll-interval", "1ms")
}

func (s *drainStage) startRelay(args ...string) (process, error) {
	r, err := s.relay(s.server, database, stream, args...)
	if err != nil {
		return nil, err
	}
	return r, r.Start()
}
