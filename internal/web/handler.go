package web

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stagedoor/walrelay/internal/health"
)

// healthTimeout bounds /healthz. Probes commonly give up after a second.
const healthTimeout = time.Second

// scrapes that are served at a time.
const maxScrapes = 4

const paths = `walrelay answers at
/         the status page, for a browser
/livez    does every loop of the program turn
/readyz   is it at work, or stands by for one that is
/healthz  how is the relay doing
/metrics  for Prometheus
`

func newHandler(cfg Config, board *board, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { serveLive(w, cfg.Live, log) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		doc := cfg.Health(ctx)
		writeJSON(w, doc.Status.HTTPCode(), doc, log)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
		defer cancel()
		serveReady(w, cfg.Health(ctx), log)
	})
	mux.Handle("/metrics", promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		// One metric that fails must not hide the others.
		ErrorHandling:       promhttp.ContinueOnError,
		DisableCompression:  true, // a few KB; a compressor holds most of a MB
		MaxRequestsInFlight: maxScrapes,
	}))
	handlePage(mux, board)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, paths, http.StatusNotFound)
	})
	return readOnly(mux)
}

// readOnly refuses every method that could change something, and forbids caches
// to answer in the relay's place.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func serveLive(w http.ResponseWriter, live func() (bool, string), log *slog.Logger) {
	answer := struct {
		Status string `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{Status: "ok"}
	code := http.StatusOK
	if ok, detail := live(); !ok {
		answer.Status, answer.Detail = "stuck", detail
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer, log)
}

// serveReady answers from the document of /healthz.
func serveReady(w http.ResponseWriter, doc health.Document, log *slog.Logger) {
	answer := struct {
		Ready   bool        `json:"ready"`
		Role    health.Role `json:"role"`
		Reasons []string    `json:"reasons,omitempty"`
	}{Ready: doc.Ready, Role: doc.Role}
	code := http.StatusOK
	if !doc.Ready {
		answer.Reasons = doc.Reasons
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer, log)
}

// writeJSON encodes before it writes, so that an answer is whole or an error.
func writeJSON(w http.ResponseWriter, code int, v any, log *slog.Logger) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // for people at a terminal
	if err := encoder.Encode(v); err != nil {
		log.Error("encoding an HTTP answer", "error", err)
		http.Error(w, "the answer could not be encoded; the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(body.Bytes()); err != nil {
		log.Debug("writing an HTTP answer", "error", err)
	}
}
