package web

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/stagedoor/walrelay/internal/health"
)

// failing is a collector with one metric that cannot be read.
type failing struct{ desc *prometheus.Desc }

func (f failing) Describe(descs chan<- *prometheus.Desc) { descs <- f.desc }

func (f failing) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.NewInvalidMetric(f.desc, errors.New("not to be read"))
}

func TestAMetricThatFailsHidesNoOther(t *testing.T) {
	cfg := config()
	cfg.Registry.MustRegister(
		failing{prometheus.NewDesc("broken", "Broken.", nil, nil)},
		collector(everything(), Stats{Published: 12}),
	)
	s, log := newServer(cfg)
	run(t, s)
	got := ask(t, "GET", "http://"+s.Addr()+"/metrics")
	if got.code != 200 || !strings.Contains(got.body, "walrelay_published_rows_total 12\n") {
		t.Errorf("%d %s", got.code, got.body)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "not to be read") {
		t.Errorf("log %s", log)
	}
}

// A compressor would hold more memory than all that it could save.
func TestMetricsAreNotCompressed(t *testing.T) {
	cfg := config()
	cfg.Registry.MustRegister(collector(everything(), Stats{}))
	s, _ := newServer(cfg)
	run(t, s)
	// Go's client offers gzip by itself, and takes the header away with it.
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Encoding"); got != "" {
		t.Errorf("encoded as %s", got)
	}
}

func TestScrapesAreBounded(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	cfg := config()
	cfg.Registry.MustRegister(NewCollector(func() health.Document {
		asked <- struct{}{}
		<-release
		return everything()
	}, func() Stats { return Stats{} }))
	s, _ := newServer(cfg)
	run(t, s)
	url := "http://" + s.Addr() + "/metrics"
	answers := make(chan error, maxScrapes)
	for range maxScrapes {
		go func() {
			got, err := try(t, "GET", url)
			if err == nil && got.code != http.StatusOK {
				err = errors.New(got.body)
			}
			answers <- err
		}()
		<-asked
	}
	if got := ask(t, "GET", url); got.code != http.StatusServiceUnavailable {
		t.Errorf("one scrape too many: %d", got.code)
	}
	close(release)
	for range maxScrapes {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// A Prometheus that asks for it gets native buckets beside the classic ones.
func TestNativeBucketsAreScraped(t *testing.T) {
	timings := NewTimings()
	timings.Published(time.Millisecond)
	cfg := config()
	cfg.Registry.MustRegister(timings)
	s, _ := newServer(cfg)
	run(t, s)
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	format := expfmt.NewFormat(expfmt.TypeProtoDelim)
	req.Header.Set("Accept", string(format))
	resp, err := client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	decoder := expfmt.NewDecoder(resp.Body, expfmt.ResponseFormat(resp.Header))
	for {
		var f dto.MetricFamily
		if err := decoder.Decode(&f); err != nil {
			t.Fatalf("%v, before the latencies", err)
		}
		if f.GetName() == "walrelay_publish_latency_seconds" {
			if h := f.Metric[0].Histogram; len(h.PositiveSpan) != 1 || len(h.Bucket) != len(latencyBuckets) {
				t.Errorf("%d spans, %d classic buckets", len(h.PositiveSpan), len(h.Bucket))
			}
			return
		}
	}
}
