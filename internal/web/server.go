package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/stagedoor/walrelay/internal/health"
)

// Requests are small and answers are read from memory: whoever takes longer
// than this holds a connection for nothing.
const (
	readTimeout     = 5 * time.Second
	writeTimeout    = 10 * time.Second
	idleTimeout     = time.Minute
	maxHeaderBytes  = 16 << 10
	shutdownTimeout = 2 * time.Second
)

// Config says where to listen and what to answer.
type Config struct {
	// Addr is HOST:PORT, as --http has it; empty for no HTTP.
	Addr string
	// Registry is what /metrics shows.
	Registry *prometheus.Registry
	// Health reads the document of /healthz from memory. It must not wait; its
	// context ends after a second.
	Health func(context.Context) health.Document
	// Live reports whether every loop of the program turns, and if not which
	// does not.
	Live func() (ok bool, detail string)

	// What follows is for the status page, and may be left out.

	Version string
	Names   Names
	// Latency is the histogram of the time from commit to append.
	Latency func() *dto.Histogram
	// Transitions are the last changes of the level, the last one first.
	Transitions func() []health.Transition
}

// Server answers over HTTP, from Listen until Run's context is done.
type Server struct {
	cfg  Config
	log  *slog.Logger
	http *http.Server

	board *board
	// grace is what requests in flight have when Run ends.
	grace time.Duration

	mu       sync.Mutex
	listener net.Listener
}

// New prepares a server. It opens nothing yet.
func New(cfg Config, log *slog.Logger) *Server {
	board := newBoard(cfg, log)
	return &Server{
		cfg:   cfg,
		log:   log,
		board: board,
		grace: shutdownTimeout,
		http: &http.Server{
			Handler:           newHandler(cfg, board, log),
			ReadHeaderTimeout: readTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}
}

// Listen binds the address, so that a wrong or taken one is known before
// anything else starts. Connections wait in the kernel until Run. Without an
// address it does nothing.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Addr == "" || s.listener != nil {
		return nil
	}
	l, err := bind(ctx, s.cfg.Addr)
	if err != nil {
		return err
	}
	s.listener = l
	if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		s.http.Handler = localOnly(s.http.Handler)
	}
	s.log.Info("listening for HTTP", "addr", l.Addr().String())
	return nil
}

// localOnly refuses requests for any other name than localhost. Whoever listens on
// loopback means to answer this machine alone, and a page from elsewhere that has
// its own name lead to this address would be answered as if it were from here.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r.Host) {
			http.Error(w, "walrelay listens on loopback, and answers to an address or to localhost alone; a proxy has to send such a Host", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocal reports whether a Host, with a port or without, is localhost or an
// address, which nobody can have lead elsewhere. Browsers always send one.
func isLocal(host string) bool {
	name := strings.Trim(host, "[]")
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	_, err := netip.ParseAddr(name)
	return err == nil || host == "" || strings.EqualFold(name, "localhost")
}

// Free reports why a server could not listen on an address; nil where it could.
func Free(ctx context.Context, addr string) error {
	if addr == "" {
		return nil
	}
	l, err := bind(ctx, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

func bind(ctx context.Context, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		hint := "want HOST:PORT of this machine, such as 127.0.0.1:9476, or an empty value for no HTTP"
		if errors.Is(err, syscall.EADDRINUSE) {
			hint = "another process listens there: stop it, or choose another port"
		}
		return nil, fmt.Errorf("--http %s: %w; %s", addr, err, hint)
	}
	return l, nil
}

// Addr is the address that the server listens on, with the port that the
// kernel chose for port 0; empty before Listen and without HTTP.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Run serves until ctx is done, listening first if Listen was not called. Then
// requests in flight have two seconds to finish. It returns nil after that, and
// the error when serving ends by itself. It is called once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	if l == nil {
		<-ctx.Done()
		return nil
	}

	looking, rest := context.WithCancel(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		s.board.run(looking)
	}()
	defer func() {
		rest()
		<-looked
	}()
	defer s.board.close()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("--http %s: serving: %w", s.cfg.Addr, err), s.http.Close())
	case <-ctx.Done():
	}
	s.board.close() // what has no end of its own
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	if err := s.http.Shutdown(bound); err != nil {
		s.log.Warn("HTTP requests were cut off at shutdown", "error", err)
		if err := s.http.Close(); err != nil {
			s.log.Warn("closing HTTP connections", "error", err)
		}
	}
	<-served
	return nil
}

// Close frees the address when Run is not going to be called.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	err := s.listener.Close()
	s.listener = nil
	return err
}
