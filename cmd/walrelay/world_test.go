package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/shop"
	"github.com/stagedoor/walrelay/internal/testservers"
	"github.com/stagedoor/walrelay/migrations"
	"github.com/stagedoor/walrelay/relay"
)

// patience bounds every wait of a test. It measures nothing: it is for what
// should never happen.
const patience = 2 * time.Minute

// world is a PostgreSQL with an outbox and an oracle, a Redis, a proxy before
// each, and relays as processes of their own.
type world struct {
	t       *testing.T
	pg      *testservers.Postgres
	redis   *testservers.Redis
	dsn     string // past the proxy
	toPG    *testservers.Proxy
	toRedis *testservers.Proxy
	relays  []*relayProcess
	pace    time.Duration // of applications, see writers
	reader  *reader       // of query
}

type worldOptions struct {
	settings  map[string]string
	redisArgs []string
	volatile  bool // Redis keeps nothing over a restart
}

// newWorld starts everything but a relay. The oracle, which is not our decoder,
// knows what was committed from here on.
func newWorld(t *testing.T, opts worldOptions) *world {
	t.Helper()
	w := &world{
		t:     t,
		pg:    testservers.StartPostgres(t, testservers.PostgresOptions{Settings: opts.settings}),
		redis: testservers.StartRedis(t, testservers.RedisOptions{Args: opts.redisArgs, Durable: !opts.volatile}),

		reader: newReader(t),
	}
	w.toPG = testservers.StartProxy(t, w.pg.Addr())
	w.toRedis = testservers.StartProxy(t, w.redis.Addr())
	w.dsn = w.pg.DSN("postgres")
	w.exec(migrations.Table(cdc.Table{Schema: "public", Name: "outbox"}))
	conn := w.connect()
	defer conn.Close(context.Background())
	if err := shop.CreateOracle(t.Context(), conn, "oracle"); err != nil {
		t.Fatal(err)
	}
	return w
}

// connect opens a connection past the proxy.
func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(context.Background(), w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// exec runs SQL.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	mode := []any{}
	if len(args) == 0 {
		mode = append(mode, pgx.QueryExecModeSimpleProtocol)
	}
	if _, err := conn.Exec(context.Background(), sql, append(mode, args...)...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// query reads one value as text; NULL is empty.
func (w *world) query(sql string) string {
	w.t.Helper()
	s, err := w.reader.read(w.dsn, sql)
	if err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return s
}

// reader keeps the session of the last query for the next: a new one for every
// look at what is waited for is most of the work of a server.
type reader struct {
	mu   sync.Mutex
	dsn  string
	conn *pgx.Conn
}

func newReader(t *testing.T) *reader {
	r := &reader{}
	t.Cleanup(r.close)
	return r
}

func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn != nil {
		_ = r.conn.Close(context.Background())
		r.conn = nil
	}
}

// read opens a session where there is none of this server, or where the one
// that was kept does not work: the server may have been started anew.
func (r *reader) read(dsn, sql string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx := context.Background()
	if r.conn != nil && r.dsn != dsn {
		_ = r.conn.Close(ctx)
		r.conn = nil
	}
	for {
		kept := r.conn != nil
		if !kept {
			conn, err := pgx.Connect(ctx, dsn)
			if err != nil {
				return "", err
			}
			r.conn, r.dsn = conn, dsn
		}
		var s *string
		err := r.conn.QueryRow(ctx, "SELECT ("+sql+")::text", pgx.QueryExecModeSimpleProtocol).Scan(&s)
		if err == nil && s != nil {
			return *s, nil
		}
		var pgErr *pgconn.PgError
		if err == nil || errors.As(err, &pgErr) && !r.conn.IsClosed() {
			return "", err
		}
		_ = r.conn.Close(ctx)
		r.conn = nil
		if !kept {
			return "", err
		}
	}
}

// insert commits rows of this kind, one a transaction.
func (w *world) insert(kind string, n int) {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	for i := range n {
		_, err := conn.Exec(context.Background(), `INSERT INTO outbox (kind, payload) VALUES ($1, jsonb_build_object('n', $2::int))`, kind, i)
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// eventually waits until check is nil.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	eventually(w.t, what, check)
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for pause := 20 * time.Millisecond; ; pause = min(pause+pause/8, 100*time.Millisecond) { // looks cost more than what is looked at
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(pause)
	}
}

// relayProcess is walrelay in a process of its own.
type relayProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan struct{}
	err  error // of Wait, once done is closed
	http string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startRelay runs walrelay behind the proxies, with the confirm delay short so
// that a test sees it pass. Later flags win.
func (w *world) startRelay(flags ...string) *relayProcess {
	w.t.Helper()
	return w.startRelayEnv([]string{execEnv + "=walrelay"}, flags...)
}

func (w *world) startRelayEnv(env []string, flags ...string) *relayProcess {
	w.t.Helper()
	path, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	args := append([]string{
		"run", "--postgres", w.relayDSN(), "--redis", "redis://" + w.toRedis.Addr() + "/0", "--http", "127.0.0.1:0",
		"--confirm-delay", "1s", "--log-level", "debug",
	}, flags...)
	return w.startProgram(path, env, args...)
}

// relayDSN leads through the proxy.
func (w *world) relayDSN() string {
	return strings.Replace(w.dsn, fmt.Sprint(w.pg.Port()), fmt.Sprint(w.toPG.Port()), 1)
}

// startProgram runs walrelay from this file, with these arguments alone.
func (w *world) startProgram(path string, env []string, args ...string) *relayProcess {
	w.t.Helper()
	p := &relayProcess{t: w.t, cmd: exec.Command(path, args...), log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.relays = append(w.relays, p)
	n := len(w.relays)
	w.t.Cleanup(func() {
		p.kill()
		if w.t.Failed() {
			w.t.Logf("relay %d said:\n%s", n, tail(p.log.String(), 200))
		}
	})
	return p
}

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// kill ends the relay with SIGKILL.
func (p *relayProcess) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop ends the relay with SIGTERM and expects exit code 0.
func (p *relayProcess) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatal("the relay does not stop")
	}
	if p.err != nil {
		p.t.Fatalf("the relay stopped with %v:\n%s", p.err, tail(p.log.String(), 50))
	}
}

// killedItself waits until the relay was ended by its own SIGKILL.
func (p *relayProcess) killedItself() error {
	select {
	case <-p.done:
	case <-time.After(patience):
		return errors.New("the relay lives")
	}
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return nil
		}
	}
	return fmt.Errorf("the relay ended with %v", p.err)
}

// says waits until the relay logged this.
func (p *relayProcess) says(text string) {
	p.t.Helper()
	eventually(p.t, "the relay says "+text, func() error {
		if strings.Contains(p.log.String(), text) {
			return nil
		}
		select {
		case <-p.done:
			p.t.Fatalf("the relay ended with %v and did not say %q", p.err, text)
		default:
		}
		return errors.New("not yet")
	})
}

var listening = regexp.MustCompile(`addr=(127\.0\.0\.1:\d+)`)

// health reads /healthz.
func (p *relayProcess) health() (code int, doc healthDocument, err error) {
	if p.http == "" {
		m := listening.FindStringSubmatch(p.log.String())
		if m == nil {
			return 0, doc, errors.New("the relay does not listen")
		}
		p.http = m[1]
	}
	client := http.Client{Timeout: 5 * time.Second}
	res, err := client.Get("http://" + p.http + "/healthz")
	if err != nil {
		return 0, doc, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, doc, err
	}
	return res.StatusCode, doc, json.Unmarshal(body, &doc)
}

type healthDocument struct {
	Status  string   `json:"status"`
	Reasons []string `json:"reasons"`
	Role    string   `json:"role"`
	Ready   bool     `json:"ready"`
	Cause   string   `json:"cause"`
	Runway  *float64 `json:"runway_seconds"`
	Slot    *struct {
		Active           bool   `json:"active"`
		WALStatus        string `json:"wal_status"`
		ConfirmedFlush   string `json:"confirmed_flush_lsn"`
		UnconfirmedBytes int64  `json:"unconfirmed_bytes"`
		RetainedBytes    int64  `json:"retained_bytes"`
	} `json:"slot"`
	Age       *float64 `json:"oldest_unpublished_age_seconds"`
	Published uint64   `json:"published_total"`
	Stream    *struct {
		Length int64
		Groups []struct{ Pending int64 }
	}
}

// becomes waits until the health document is as wanted.
func (p *relayProcess) becomes(what string, check func(code int, doc healthDocument) bool) {
	p.t.Helper()
	eventually(p.t, "health becomes "+what, func() error {
		code, doc, err := p.health()
		if err != nil {
			return err
		}
		if !check(code, doc) {
			return fmt.Errorf("%d %+v", code, doc)
		}
		return nil
	})
}

// streams waits until the relay streams.
func (p *relayProcess) streams() {
	p.t.Helper()
	p.says("msg=streaming")
}

// entries reads the stream past the proxy.
func (w *world) entries() ([]redis.XMessage, error) {
	client := redis.NewClient(&redis.Options{Addr: w.redis.Addr(), ReadTimeout: time.Minute})
	defer client.Close()
	return client.XRange(context.Background(), "jobs", "-", "+").Result()
}

// committed asks the oracle.
func (w *world) committed() []shop.Row {
	w.t.Helper()
	conn := w.connect()
	defer conn.Close(context.Background())
	rows, err := shop.ReadOracle(context.Background(), conn, "oracle")
	if err != nil {
		w.t.Fatal(err)
	}
	return rows
}

// verify waits until the stream has as many entries as rows were committed, and
// compares: each row once, in commit order, byte for byte. The first so many
// rows may be in any order: a backfill's own.
func (w *world) verify(backfilled int) {
	w.t.Helper()
	want := w.committed()
	client := w.rdb()
	w.eventually(fmt.Sprintf("%d entries", len(want)), func() error {
		n, err := client.XLen(context.Background(), "jobs").Result()
		if err == nil && n < int64(len(want)) {
			err = fmt.Errorf("%d entries", n)
		}
		return err
	})
	got, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := compare(want, got, backfilled); err != nil {
		w.t.Error(err)
	}
}

func compare(want []shop.Row, got []redis.XMessage, backfilled int) error {
	seen := map[string]int{}
	var ids []string
	for _, m := range got {
		id, _ := m.Values["outbox_id"].(string)
		ids = append(ids, id)
		seen[id]++
	}
	var problems []string
	for _, r := range want {
		if n := seen[r.OutboxID]; n != 1 {
			problems = append(problems, fmt.Sprintf("row %s (%s) is on the stream %d times", r.OutboxID, r.Kind, n))
		}
		delete(seen, r.OutboxID)
	}
	for id, n := range seen {
		problems = append(problems, fmt.Sprintf("the id %s was never committed and is on the stream %d times", id, n))
	}
	if len(problems) == 0 {
		first := slices.Clone(want[:backfilled])
		firstIDs := slices.Clone(ids[:backfilled])
		for i := range first {
			if !slices.Contains(firstIDs, first[i].OutboxID) {
				problems = append(problems, fmt.Sprintf("row %s was there before and is not among the first %d entries", first[i].OutboxID, backfilled))
			}
		}
		for i := backfilled; i < len(want); i++ {
			if ids[i] != want[i].OutboxID {
				problems = append(problems, fmt.Sprintf("entry %d is row %s, in commit order it is row %s", i, ids[i], want[i].OutboxID))
				break
			}
		}
	}
	byID := map[string]shop.Row{}
	for _, r := range want {
		byID[r.OutboxID] = r
	}
	for _, m := range got {
		id, _ := m.Values["outbox_id"].(string)
		r, ok := byID[id]
		if ok && (m.Values["kind"] != r.Kind || m.Values["payload"] != r.Payload) {
			problems = append(problems, fmt.Sprintf("row %s is %q %q, its entry %v", id, r.Kind, r.Payload, m.Values))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	n := len(problems)
	if n > 20 {
		problems = append(problems[:20], "…")
	}
	return fmt.Errorf("%d problems with %d rows and %d entries:\n%s", n, len(want), len(got), strings.Join(problems, "\n"))
}

// allMarked waits until no row is unmarked.
func (w *world) allMarked() {
	w.t.Helper()
	w.eventually("all rows are marked", func() error {
		if n := w.query(`SELECT count(*) FROM outbox WHERE published_at IS NULL`); n != "0" {
			return fmt.Errorf("%s are not", n)
		}
		return nil
	})
}

// confirmedPast waits until the slot is confirmed up to what is written now.
func (w *world) confirmedPast() {
	w.t.Helper()
	lsn := w.query(`pg_current_wal_insert_lsn()`)
	w.eventually("the slot is confirmed up to "+lsn, func() error {
		if w.query(`SELECT confirmed_flush_lsn >= '`+lsn+`' FROM pg_replication_slots WHERE slot_name = 'walrelay'`) != "true" {
			return errors.New(w.query(`SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'walrelay'`))
		}
		return nil
	})
}

// crashEnv tells the test binary where it is to end: STEP:N is the N-th time
// that it comes to STEP.
const crashEnv = "TEST_CRASH_AT"

// crash is walrelay that ends with SIGKILL at a step.
func crash() {
	name, text, _ := strings.Cut(os.Getenv(crashEnv), ":")
	left, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	code := watchedMain(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr, func(s relay.Step) {
		mu.Lock()
		defer mu.Unlock()
		if string(s) != name {
			return
		}
		if left--; left == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	os.Exit(code)
}
