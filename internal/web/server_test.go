package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stagedoor/walrelay/internal/health"
)

// logBuffer keeps what a server logs.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func okDocument(context.Context) health.Document {
	return health.Document{Status: health.StatusOK, Reasons: []string{}, Role: health.RoleStreaming}
}

// config is one that works, on a free port.
func config() Config {
	return Config{
		Addr:     "127.0.0.1:0",
		Registry: prometheus.NewRegistry(),
		Health:   okDocument,
		Live:     NewHeartbeats().Live,
	}
}

func newServer(cfg Config) (*Server, *logBuffer) {
	log := new(logBuffer)
	return New(cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))), log
}

// run starts a server and returns what stops it and gives Run's error.
func run(t *testing.T, s *Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.Listen(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

// client has connections of its own, which are closed with the test.
func client(t *testing.T) *http.Client {
	transport := new(http.Transport)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// encoded is a document as it is answered.
func encoded(t *testing.T, doc health.Document) string {
	t.Helper()
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(doc); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

type answer struct {
	code   int
	header http.Header
	body   string
}

func ask(t *testing.T, method, url string) answer {
	t.Helper()
	got, err := try(t, method, url)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func try(t *testing.T, method, url string) (answer, error) {
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		return answer{}, err
	}
	resp, err := client(t).Do(req)
	if err != nil {
		return answer{}, err
	}
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, errors.Join(err, resp.Body.Close())
}

func TestPathsAndMethods(t *testing.T) {
	cfg := config()
	if err := cfg.Registry.Register(NewCollector(func() health.Document { return okDocument(t.Context()) }, func() Stats { return Stats{} })); err != nil {
		t.Fatal(err)
	}
	s, _ := newServer(cfg)
	run(t, s)

	const (
		asJSON = "application/json"
		asText = "text/plain; charset=utf-8"
	)
	doc := encoded(t, okDocument(t.Context()))
	for _, c := range []struct {
		method, path string
		code         int
		kind, body   string
	}{
		{"GET", "/healthz", 200, asJSON, doc},
		{"GET", "/healthz?verbose", 200, asJSON, doc},
		{"HEAD", "/healthz", 200, asJSON, ""},
		{"GET", "/readyz", 503, asJSON, `{"ready":false,"role":"streaming"}` + "\n"},
		{"GET", "/livez", 200, asJSON, `{"status":"ok"}` + "\n"},
		{"HEAD", "/livez", 200, asJSON, ""},
		{"GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "*"},
		{"HEAD", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", ""},
		{"GET", "/", 200, "text/html; charset=utf-8", "<!"},
		{"HEAD", "/", 200, "text/html; charset=utf-8", ""},
		{"HEAD", "/events", 200, "text/event-stream", ""},
		{"POST", "/events", 405, asText, "only GET and HEAD\n"},
		{"GET", "/healthz/", 404, asText, paths + "\n"},
		{"GET", "/nothing", 404, asText, paths + "\n"},
		{"HEAD", "/nothing", 404, asText, ""},
		{"POST", "/healthz", 405, asText, "only GET and HEAD\n"},
		{"PUT", "/livez", 405, asText, "only GET and HEAD\n"},
		{"DELETE", "/metrics", 405, asText, "only GET and HEAD\n"},
		{"OPTIONS", "/nothing", 405, asText, "only GET and HEAD\n"},
	} {
		got := ask(t, c.method, "http://"+s.Addr()+c.path)
		if got.code != c.code || got.header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s: %d, %s; want %d, %s", c.method, c.path, got.code, got.header.Get("Content-Type"), c.code, c.kind)
		}
		if c.body == "<!" {
			got.body = got.body[:2]
		}
		if c.body != "*" && got.body != c.body {
			t.Errorf("%s %s: body %q, want %q", c.method, c.path, got.body, c.body)
		}
		if c.body == "*" && !strings.Contains(got.body, `walrelay_health_status{status="ok"} 1`) {
			t.Errorf("%s %s: body %q", c.method, c.path, got.body)
		}
		if got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", c.method, c.path, got.header)
		}
		if allow := got.header.Get("Allow"); (c.code == 405) != (allow == "GET, HEAD") {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
		}
	}
	for _, path := range []string{"/", "/livez", "/healthz", "/metrics"} {
		if !strings.Contains(paths, path+" ") {
			t.Errorf("%s is not in the list of paths", path)
		}
	}
}

func TestHealthIsAnsweredByItsLevel(t *testing.T) {
	var now atomic.Pointer[health.Document]
	now.Store(new(health.Document))
	cfg := config()
	cfg.Health = func(ctx context.Context) health.Document {
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > time.Second {
			t.Errorf("the context of a probe ends at %v", deadline)
		}
		return *now.Load()
	}
	s, _ := newServer(cfg)
	run(t, s)
	for ready, want := range map[bool]string{
		true:  `200 {"ready":true,"role":"standby"}`,
		false: `503 {"ready":false,"role":"standby","reasons":["Redis has been away."]}`,
	} {
		now.Store(&health.Document{Status: health.StatusWarn, Reasons: []string{"Redis has been away."}, Role: health.RoleStandby, Ready: ready})
		got := ask(t, "GET", "http://"+s.Addr()+"/readyz")
		if text := fmt.Sprintf("%d %s", got.code, strings.TrimSpace(got.body)); text != want {
			t.Errorf("ready %t: %s, want %s", ready, text, want)
		}
	}
	for status, code := range map[health.Status]int{health.StatusOK: 200, health.StatusWarn: 200, health.StatusCritical: 503} {
		now.Store(&health.Document{Status: status, Reasons: []string{"waits for <idle> & others"}, Role: health.RoleStandby, Published: 3})
		got := ask(t, "GET", "http://"+s.Addr()+"/healthz")
		want := encoded(t, *now.Load())
		if !strings.HasPrefix(want, `{"status":"`+string(status)+`","reasons":["waits for <idle> & others"],"role":"standby"`) {
			t.Errorf("the document is %s", want)
		}
		if got.code != code || got.body != want {
			t.Errorf("%s: %d %s, want %d %s", status, got.code, got.body, code, want)
		}
	}
}

func TestLivezNamesTheLoopThatIsStuck(t *testing.T) {
	cfg := config()
	cfg.Live = func() (bool, string) { return false, "loop publisher has not turned for 31 s" }
	s, _ := newServer(cfg)
	run(t, s)
	got := ask(t, "GET", "http://"+s.Addr()+"/livez")
	if want := `{"status":"stuck","detail":"loop publisher has not turned for 31 s"}` + "\n"; got.code != 503 || got.body != want {
		t.Errorf("%d %s, want 503 %s", got.code, got.body, want)
	}
}

func TestAnAnswerThatCannotBeEncodedIsAnError(t *testing.T) {
	cfg := config()
	cfg.Health = func(ctx context.Context) health.Document {
		doc := okDocument(ctx)
		inf := 1.0
		for range 2000 {
			inf *= 2
		}
		doc.OldestAge = &inf
		return doc
	}
	s, log := newServer(cfg)
	run(t, s)
	got := ask(t, "GET", "http://"+s.Addr()+"/healthz")
	if got.code != 500 || got.body != "the answer could not be encoded; the log says why\n" {
		t.Errorf("%d %q", got.code, got.body)
	}
	if !strings.Contains(log.String(), "encoding an HTTP answer") || strings.Contains(log.String(), "superfluous") {
		t.Errorf("log %s", log)
	}
}

func TestTakenPortNamesTheFlag(t *testing.T) {
	first, _ := newServer(config())
	if err := first.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	cfg := config()
	cfg.Addr = first.Addr()
	second, _ := newServer(cfg)
	for name, f := range map[string]func(context.Context) error{"Listen": second.Listen, "Run": second.Run} {
		err := f(t.Context())
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{"--http " + cfg.Addr, "another process listens there"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", name, err, want)
			}
		}
	}
	if second.Addr() != "" {
		t.Errorf("listens at %s", second.Addr())
	}
}

func TestWrongAddressNamesTheFlag(t *testing.T) {
	for _, addr := range []string{"9476", "127.0.0.1:port", "127.0.0.1:99999", "192.0.2.1:9476"} {
		cfg := config()
		cfg.Addr = addr
		s, _ := newServer(cfg)
		err := s.Listen(t.Context())
		if err == nil {
			s.Close()
			t.Fatalf("listens at %s", addr)
		}
		for _, want := range []string{"--http " + addr, "want HOST:PORT of this machine"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
}

func TestNoAddressIsNoHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config()
		cfg.Addr = ""
		s, _ := newServer(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("Run ended before its context: %v", err)
		default:
		}
		if err := s.Listen(ctx); err != nil || s.Addr() != "" {
			t.Errorf("listens at %q, error %v", s.Addr(), err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A page from elsewhere may have its own name lead to the address of a server on
// loopback, and then read what a browser here gets for it.
func TestLoopbackAnswersToNoOtherName(t *testing.T) {
	for addr, others := range map[string]int{"127.0.0.1:0": 421, ":0": 200} {
		cfg := config()
		cfg.Addr = addr
		s, _ := newServer(cfg)
		run(t, s)
		_, port, err := net.SplitHostPort(s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]int{
			"127.0.0.1:" + port: 200, "localhost:" + port: 200, "LOCALHOST": 200, "[::1]:9476": 200, "[::1]": 200, "192.0.2.1": 200,
			"evil.example:" + port: others, "localhost.evil.example": others, "127.0.0.1.evil.example": others, ":" + port: others,
		} {
			for _, path := range []string{"/", "/healthz", "/metrics", "/nothing"} {
				req, err := http.NewRequestWithContext(t.Context(), "HEAD", "http://127.0.0.1:"+port+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Host = host
				resp, err := client(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if path == "/nothing" && want == 200 {
					want = 404
				}
				if resp.StatusCode != want {
					t.Errorf("at %s, %s of %q is answered with %d, want %d", addr, path, host, resp.StatusCode, want)
				}
			}
		}
	}
}

// net/http has things to say too, such as that there are no more file
// descriptors.
func TestWhatTheServerSaysIsLogged(t *testing.T) {
	cfg := config()
	cfg.Live = func() (bool, string) { panic("on purpose") }
	s, log := newServer(cfg)
	stop := run(t, s)
	if want := "level=INFO msg=\"listening for HTTP\" addr=" + s.Addr(); !strings.Contains(log.String(), want) {
		t.Errorf("log %s", log)
	}
	if got, err := try(t, "GET", "http://"+s.Addr()+"/livez"); err == nil {
		t.Errorf("answered with %d", got.code)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "on purpose") {
		t.Errorf("log %s", log)
	}
}

// What is asked between Listen and Run is answered by Run.
func TestListenComesBeforeRun(t *testing.T) {
	s, _ := newServer(config())
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	addr := s.Addr()
	if err := s.Listen(t.Context()); err != nil || s.Addr() != addr {
		t.Fatalf("the second Listen: %v, at %s instead of %s", err, s.Addr(), addr)
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	run(t, s)
	got, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.0 200 OK") {
		t.Errorf("answer %q, error %v", got, err)
	}
}

func TestTheAddressIsFreeAfterwards(t *testing.T) {
	for _, end := range []struct {
		name string
		f    func(*testing.T, *Server)
	}{
		{"Run", func(t *testing.T, s *Server) {
			if err := run(t, s)(); err != nil {
				t.Error(err)
			}
		}},
		{"Run with a context that is done", func(t *testing.T, s *Server) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		}},
		{"Close", func(t *testing.T, s *Server) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if s.Addr() != "" {
				t.Errorf("listens at %s", s.Addr())
			}
		}},
	} {
		t.Run(end.name, func(t *testing.T) {
			s, _ := newServer(config())
			if err := s.Listen(t.Context()); err != nil {
				t.Fatal(err)
			}
			addr := s.Addr()
			end.f(t, s)
			l, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		})
	}
}

func TestShutdownWaitsForRequestsInFlight(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	cfg := config()
	cfg.Live = func() (bool, string) {
		close(asked)
		<-release
		return true, ""
	}
	s, _ := newServer(cfg)
	s.grace = time.Minute
	stop := run(t, s)

	answered := make(chan error, 1)
	go func() {
		got, err := try(t, "GET", "http://"+s.Addr()+"/livez")
		if err == nil && got.code != http.StatusOK {
			err = errors.New(got.body)
		}
		answered <- err
	}()
	<-asked
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	refused(t, s.Addr())
	select {
	case err := <-stopped:
		t.Errorf("Run ended while a request was in flight: %v", err)
	default:
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// refused waits until nobody listens at an address any more.
func refused(t *testing.T, addr string) {
	t.Helper()
	for {
		conn, err := net.Dial("tcp", addr)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			conn.Close()
		}
		if t.Context().Err() != nil {
			t.Fatal("somebody still listens")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestShutdownIsBounded(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	cfg := config()
	cfg.Live = func() (bool, string) {
		close(asked)
		<-release
		return true, ""
	}
	s, log := newServer(cfg)
	s.grace = time.Millisecond
	stop := run(t, s)
	answered := make(chan error, 1)
	go func() {
		_, err := try(t, "GET", "http://"+s.Addr()+"/livez")
		answered <- err
	}()
	<-asked
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-answered; err == nil {
		t.Error("the request was answered")
	}
	close(release)
	if !strings.Contains(log.String(), "cut off at shutdown") {
		t.Errorf("log %s", log)
	}
}

func TestServingThatEndsByItselfIsAnError(t *testing.T) {
	s, _ := newServer(config())
	if err := s.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	err := s.Run(t.Context())
	if !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), "--http 127.0.0.1:0") {
		t.Errorf("Run: %v", err)
	}
}

// A peer that says nothing, or little, does not hold a connection for ever.
func TestEveryPhaseOfARequestIsBounded(t *testing.T) {
	s, _ := newServer(config())
	for name, d := range map[string]time.Duration{
		"reading the header": s.http.ReadHeaderTimeout,
		"reading":            s.http.ReadTimeout,
		"writing":            s.http.WriteTimeout,
		"idling":             s.http.IdleTimeout,
		"shutting down":      s.grace,
	} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s may take %v", name, d)
		}
	}
	if n := s.http.MaxHeaderBytes; n <= 0 || n > 64<<10 {
		t.Errorf("headers of %d bytes", n)
	}
}
