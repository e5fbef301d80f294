package web

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/health"
)

// Stats are a relay's totals since the process started.
type Stats struct {
	Published       uint64 // rows appended to a stream
	Dead            uint64 // rows appended to a dead stream instead
	SkippedOnStream uint64 // rows found on the stream already
	Batches         uint64 // appends that succeeded
	AppendRetries   uint64 // appends that failed and were made again
	StampRetries    uint64 // stamps that failed and were made again
	Reconnects      uint64 // replication connections after the first
	Marked          uint64 // rows marked in the table
	MarksWaiting    int    // rows published and not marked yet

	Heals       map[cdc.Kind]uint64 // backfills that put rows back, by what was wrong
	LostEntries uint64              // entries whose rows were lost with a database

	Purged uint64 // published rows deleted from the table, as --purge-after says
}

// Build names the binary.
type Build struct {
	Version string
	Commit  string
}

// RegisterProcess adds what there is once in a process: the build, the Go
// runtime and the process itself.
func RegisterProcess(reg prometheus.Registerer, build Build) error {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "walrelay_build_info",
		Help: "Version, commit and Go version of this binary; always 1.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "commit": build.Commit, "go_version": runtime.Version(),
		},
	})
	info.Set(1)
	for _, c := range []prometheus.Collector{
		info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// Collector turns a relay's health and totals into metrics when it is scraped.
// Several relays in a process are told apart with
// prometheus.WrapRegistererWith.
type Collector struct {
	health func() health.Document
	stats  func() Stats

	status, role                   *prometheus.Desc
	published, dead                *prometheus.Desc
	skipped, batches               *prometheus.Desc
	retries, marked, marksWaiting  *prometheus.Desc
	heals, lostEntries, purged     *prometheus.Desc
	oldest                         *prometheus.Desc
	active, walStatus              *prometheus.Desc
	unconfirmed, retained, safeWAL *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector reads from two functions, which must not wait.
func NewCollector(health func() health.Document, stats func() Stats) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("walrelay_"+name, help, labels, nil)
	}
	return &Collector{
		health: health,
		stats:  stats,

		status:       desc("health_status", "1 for the level of health that the relay is at, 0 for the others.", "status"),
		role:         desc("role", "1 for what the relay does at the moment, 0 for the others.", "role"),
		published:    desc("published_total", "Rows appended to a stream."),
		dead:         desc("dead_rows_total", "Rows that could not be published and were put on a dead stream, as an operator asked."),
		skipped:      desc("skipped_on_stream_total", "Rows received, found on the stream already and not appended again."),
		batches:      desc("batches_total", "Batches of rows appended to Redis, each in one step."),
		retries:      desc("retries_total", "Tries that failed and were made again, by what was tried.", "reason"),
		marked:       desc("marked_total", "Rows marked as published in the table."),
		marksWaiting: desc("marks_waiting", "Rows published and not marked in the table yet."),
		heals:        desc("heals_total", "Backfills begun because rows may have been missing, by what was wrong.", "reason"),
		lostEntries:  desc("lost_entries_total", "Entries on a stream whose rows were lost with a database."),
		purged:       desc("purged_rows_total", "Published rows deleted from the table when they were old enough."),
		oldest:       desc("oldest_unpublished_age_seconds", "Age of the oldest row that is not published, 0 when all are; absent when unknown."),
		active:       desc("slot_active", "1 while a relay is connected to the slot."),
		walStatus:    desc("slot_wal_status", "1 for the slot's wal_status, 0 for the others.", "status"),
		unconfirmed:  desc("slot_unconfirmed_bytes", "WAL behind the slot's confirmed_flush_lsn: what is not delivered."),
		retained:     desc("slot_retained_bytes", "WAL behind the slot's restart_lsn: what the slot keeps on disk."),
		safeWAL:      desc("slot_safe_wal_bytes", "WAL that can be written before the slot loses some; absent without max_slot_wal_keep_size."),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.status, c.role, c.published, c.dead, c.skipped, c.batches, c.retries, c.marked, c.marksWaiting,
		c.heals, c.lostEntries, c.purged, c.oldest, c.active, c.walStatus, c.unconfirmed, c.retained, c.safeWAL,
	} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	doc, stats := c.health(), c.stats()
	send := func(kind prometheus.ValueType) func(*prometheus.Desc, float64, ...string) {
		return func(d *prometheus.Desc, v float64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(d, kind, v, labels...)
		}
	}
	gauge, counter := send(prometheus.GaugeValue), send(prometheus.CounterValue)

	for _, s := range health.Statuses() {
		gauge(c.status, oneIf(s == doc.Status), string(s))
	}
	for _, r := range health.Roles() {
		gauge(c.role, oneIf(r == doc.Role), string(r))
	}
	counter(c.published, float64(stats.Published))
	counter(c.dead, float64(stats.Dead))
	counter(c.skipped, float64(stats.SkippedOnStream))
	counter(c.batches, float64(stats.Batches))
	counter(c.retries, float64(stats.AppendRetries), "append")
	counter(c.retries, float64(stats.StampRetries), "stamp")
	counter(c.retries, float64(stats.Reconnects), "reconnect")
	counter(c.marked, float64(stats.Marked))
	gauge(c.marksWaiting, float64(stats.MarksWaiting))
	for _, kind := range cdc.Kinds {
		counter(c.heals, float64(stats.Heals[kind]), string(kind))
	}
	counter(c.lostEntries, float64(stats.LostEntries))
	counter(c.purged, float64(stats.Purged))
	if doc.OldestAge != nil {
		gauge(c.oldest, *doc.OldestAge)
	}
	if doc.Slot != nil {
		c.collectSlot(doc.Slot, gauge)
	}
}

// collectSlot sends what is known of a slot: a zero for what is not would read
// as a slot without lag.
func (c *Collector) collectSlot(slot *health.Slot, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(c.active, oneIf(slot.Active))
	if slot.WALStatus != "" {
		for _, s := range health.WALStatuses() {
			gauge(c.walStatus, oneIf(s == slot.WALStatus), s)
		}
	}
	for _, m := range []struct {
		desc  *prometheus.Desc
		bytes *int64
	}{
		{c.unconfirmed, slot.UnconfirmedBytes},
		{c.retained, slot.RetainedBytes},
		{c.safeWAL, slot.SafeWALSize},
	} {
		if m.bytes != nil {
			gauge(m.desc, float64(*m.bytes))
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
