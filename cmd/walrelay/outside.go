package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
	"github.com/stagedoor/walrelay/internal/status"
	"github.com/stagedoor/walrelay/outbox"
	"github.com/stagedoor/walrelay/publisher"
	"github.com/stagedoor/walrelay/relay"
	"github.com/stagedoor/walrelay/slot"
)

const (
	// lookPatience bounds one look at PostgreSQL, connecting included, and the
	// rest of a look at Redis after it.
	lookPatience = 5 * time.Second
	// redisLookPatience bounds one question to Redis.
	redisLookPatience = 2 * time.Second
	// stampsLate is how old a checkpoint may be that a relay writes once a second,
	// by two clocks, and stampsSeen for how long it is looked then whether it is
	// written after all.
	stampsLate = 15 * time.Second
	stampsSeen = 3 * time.Second
)

// outside looks at both sides as somebody who is no relay. It keeps what was
// seen last, for when one of them does not answer.
type outside struct {
	cfg    *Config
	slot   *slot.Looker
	table  *outbox.Table
	client *redis.Client
	sink   *publisher.Publisher

	database status.Database
	redis    status.Redis

	stampsLate time.Duration
}

func newOutside(p *process) (*outside, error) {
	client, err := publisher.Connect(p.cfg.Redis.URL())
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler) // what is dubious of a table, check says
	return &outside{
		cfg: p.cfg, client: client, sink: publisher.New(client, 0, p.cfg.Stream),
		slot:     slot.NewLooker(slotConfig(p.cfg), quiet),
		table:    outbox.New(outbox.Config{Conn: p.cfg.Postgres, Table: p.cfg.Table, Mapping: p.cfg.Mapping(), Mark: p.cfg.Mark}, quiet),
		database: status.Database{Check: psqlCommand(p.cfg)},
		redis:    status.Redis{Check: redisCommand(p.cfg)},

		stampsLate: stampsLate,
	}, nil
}

func (o *outside) close() {
	o.slot.Close()
	o.table.Close()
	o.client.Close()
}

// look looks at both sides at once, and then at the checkpoint, whose name only
// PostgreSQL knows. It takes a few seconds where one of them does not answer.
func (o *outside) look(ctx context.Context) *status.Look {
	cfg := o.cfg
	l := &status.Look{
		Slot: cfg.Slot, Publication: cfg.Publication, Table: cfg.Table.String(), Stream: cfg.Stream, HTTP: cfg.HTTP, DiskBudget: int64(cfg.DiskBudget),
	}
	began := time.Now()
	asked := make(chan error, 1)
	var stream publisher.Stream
	go func() {
		ctx, cancel := context.WithTimeout(ctx, redisLookPatience)
		defer cancel()
		var err error
		stream, err = o.sink.Stream(ctx, cfg.Stream, true)
		asked <- err
	}()
	v, err := o.lookAtDatabase(ctx, l)
	o.databaseSeen(l, v, err, began)
	answers := o.streamSeen(l, stream, <-asked, began)
	if answers && err == nil {
		o.lookAtCheckpoint(ctx, l, v)
	}
	if !answers || err != nil {
		o.redis.CheckpointUnknown = cmp.Or(o.redis.CheckpointUnknown, o.unknown(answers))
	}
	l.At = time.Now()
	l.Database, l.Redis = o.database, o.redis
	if cp := o.redis.Checkpoint; cp != nil {
		l.Doubt = relay.InDoubt(cp.Doubt)
		if cp.Blocked != nil {
			l.Problems = append(l.Problems, relay.StoppedAt(*cp.Blocked, cfg.Stream))
		}
	}
	return l
}

// unknown is why the checkpoint is not known where it never was.
func (o *outside) unknown(answers bool) string {
	switch {
	case o.redis.Asked:
		return "" // it is as seen last
	case answers:
		return "its name in Redis is of PostgreSQL, which does not answer"
	}
	return "Redis does not answer"
}

// lookAtDatabase looks at the slot and at the table.
func (o *outside) lookAtDatabase(ctx context.Context, l *status.Look) (slot.View, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	v, err := o.slot.Look(ctx)
	if err != nil {
		return v, err
	}
	d := &o.database
	d.OldestAge, d.Waiting, d.AgeUnknown, d.Unseen = nil, 0, "", ""
	var seen outbox.Looked
	err = o.slot.Ask(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if err = o.table.Check(ctx, conn); err == nil {
			seen, err = o.table.LookNow(ctx, conn, status.WaitingMost, nil)
		}
		return err
	})
	switch {
	case err != nil:
		d.Unseen = err.Error()
	case o.table.Marks() == outbox.MarkNone:
		d.AgeUnknown = "rows are not marked"
	default:
		d.Waiting = len(seen.Unmarked)
		age := seen.Age.Seconds()
		d.OldestAge = &age
		if d.Waiting > 0 && !seen.Found {
			d.OldestAge, d.AgeUnknown = nil, fmt.Sprintf("%d rows, which do not tell when they were created", d.Waiting)
		}
	}
	return v, nil
}

// databaseSeen keeps what was seen.
func (o *outside) databaseSeen(l *status.Look, v slot.View, err error, began time.Time) {
	d := &o.database
	if err != nil {
		d.Error = err.Error()
		if d.AwaySince.IsZero() {
			d.AwaySince = began
		}
		return
	}
	d.AwaySince, d.Error = time.Time{}, ""
	d.SeenAt, d.Clock = v.At, v.Clock
	d.Version, d.Standby, d.Name = v.Server.Version, v.Recovery, v.Server.Database
	d.WALEnd, d.Timeline = v.WALEnd, v.Timeline
	d.FullPages, d.CheckpointEvery = v.FullPages, v.CheckpointEvery
	d.Slot, d.Other, d.Foreign, d.LockPID = healthSlot(v.Slot), otherSlot(v.Other), v.Foreign, v.LockPID
	d.Plugin, d.Database = "", ""
	if v.Slot != nil {
		d.Plugin, d.Database = v.Slot.Plugin, v.Slot.Database
	}
	d.Holder, d.EndHold = "", ""
	if v.Holder != nil {
		d.Holder, d.EndHold = v.Holder.String(), v.Holder.Command()
	}
	d.Waits, d.EndWait = "", ""
	if v.WaitsFor != nil {
		d.Waits, d.EndWait = v.WaitsFor.String(), v.WaitsFor.Command()
	}
	d.Published, d.Publication = v.Published, v.Publication
	if v.Problem != nil && !errors.Is(v.Problem, slot.ErrPublication) {
		l.Problems = append(l.Problems, v.Problem)
	}
	// A first start makes the publication, or says why it cannot.
	if v.Publication != nil && v.Slot != nil && !v.Foreign {
		l.Problems = append(l.Problems, v.Publication)
	}
}

// streamSeen keeps what was seen of the stream, and reports whether Redis
// answers, be it with a refusal.
func (o *outside) streamSeen(l *status.Look, s publisher.Stream, err error, began time.Time) bool {
	r := &o.redis
	refused := fault.As(err) != nil
	if err != nil && !refused {
		r.Error = err.Error()
		if r.AwaySince.IsZero() {
			r.AwaySince = began
		}
		return false
	}
	r.AwaySince, r.Error = time.Time{}, ""
	r.SeenAt = time.Now()
	r.Stream, r.StreamUnknown = nil, ""
	switch {
	case publisher.NotAllowed(err):
		r.StreamUnknown = fault.As(err).Err.Error()
	case refused:
		r.StreamUnknown = fault.As(err).Err.Error()
		l.Problems = append(l.Problems, err)
	default:
		r.Stream = healthStream(s)
	}
	return true
}

// lookAtCheckpoint reads the checkpoint, and judges it beside the slot as a relay
// would that starts now: the slot was read before it, and the end of the WAL is
// read after it.
func (o *outside) lookAtCheckpoint(ctx context.Context, l *status.Look, v slot.View) {
	r := &o.redis
	ctx, cancel := context.WithTimeout(ctx, redisLookPatience+stampsSeen)
	defer cancel()
	key := publisher.Key(v.Server.SystemID, v.Server.Database, o.cfg.Slot)
	cp, streams, err := o.sink.Load(ctx, key)
	if err != nil {
		r.Asked, r.Checkpoint, r.CheckpointUnknown = false, nil, err.Error()
		return
	}
	r.Asked, r.Checkpoint, r.CheckpointUnknown, r.StillSince = true, cp, "", time.Time{}
	s := v.Slot
	switch {
	case v.Foreign || v.LockPID != 0:
	case s != nil && s.Active && cp == nil:
		l.Notes = append(l.Notes, fmt.Sprintf("The slot is in use, and this Redis has no checkpoint of it: is %s the one that the relay writes to?", o.cfg.Redis))
	case s != nil && s.Active:
		o.lookForStamps(ctx, key)
	case v.Recovery:
		l.Notes = append(l.Notes, "This is a standby: walrelay check says whether a relay could start here.")
	case cp != nil && cp.Timeline < v.Timeline:
		l.Notes = append(l.Notes, fmt.Sprintf("The server is on timeline %d, and the checkpoint is of timeline %d: it failed over, or was restored. walrelay check says what a relay makes of that.", v.Timeline, cp.Timeline))
	default:
		o.judge(ctx, l, v, cp, streams)
	}
}

// lookForStamps looks whether the relay that streams writes the checkpoint. Where
// its time is of long ago that may be the fault of a clock.
func (o *outside) lookForStamps(ctx context.Context, key string) {
	r := &o.redis
	held := r.Checkpoint
	began := time.Now()
	if stamped(held, began, o.stampsLate) {
		return
	}
	for end := time.Now().Add(stampsSeen); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(stampsSeen / 10):
		}
		cp, _, err := o.sink.Load(ctx, key)
		if err != nil || cp == nil || cp.Version != held.Version {
			return // it is written, or the next look says why that is not known
		}
	}
	r.StillSince = stillSince(held, began)
}

// stamped reports whether the time of a checkpoint says that it is written. One
// that is to come is of a clock that is ahead, and no more a sign of life than one
// of long ago.
func stamped(cp *cdc.Checkpoint, now time.Time, late time.Duration) bool {
	return now.Sub(cp.WrittenAt).Abs() < late
}

// stillSince is since when a checkpoint is as it is, which was looked at for a
// while from began on. A release that does not tell when it wrote tells at least
// up to which time the rows are there.
func stillSince(cp *cdc.Checkpoint, began time.Time) time.Time {
	since := cp.WrittenAt
	if since.IsZero() {
		since = cp.CoveredTime
	}
	if since.After(began) {
		return began
	}
	return since
}

func (o *outside) judge(ctx context.Context, l *status.Look, v slot.View, cp *cdc.Checkpoint, streams map[string]cdc.StreamState) {
	server := v.Server
	var err error
	if server.WALEnd, err = o.slot.WALEnd(ctx); err != nil {
		return // the next look says so
	}
	var s *cdc.Slot
	if v.Slot != nil {
		s = &cdc.Slot{
			Name: v.Slot.Name, Plugin: v.Slot.Plugin, Database: v.Slot.Database, WALStatus: v.Slot.WALStatus,
			ConfirmedFlush: v.Slot.ConfirmedFlush, RestartLSN: v.Slot.RestartLSN,
		}
	}
	j, err := cdc.Judge(server, s, cp, streams)
	if err != nil {
		l.Problems = append(l.Problems, relay.Unfit(err))
		return
	}
	l.Judgement = &j
	switch {
	case j.Verdict != cdc.Gap:
	case o.cfg.Heal == "manual":
		l.Problems = append(l.Problems, relay.WaitsForHeal(j))
	default:
		l.Notes = append(l.Notes, strings.ToUpper(j.Reason[:1])+j.Reason[1:]+". A relay that starts heals that.")
	}
}

// psqlCommand shows whether PostgreSQL answers.
func psqlCommand(cfg *Config) string {
	c := cfg.Postgres
	return fmt.Sprintf("psql -h %s -p %d -U %s -d %s -c 'SELECT 1'", c.Host, c.Port, shellWord(c.User), shellWord(cmp.Or(c.Database, c.User)))
}

// redisCommand shows whether Redis answers.
func redisCommand(cfg *Config) string {
	options, err := redis.ParseURL(cfg.Redis.URL())
	if err != nil {
		return "redis-cli time"
	}
	args := []string{"redis-cli"}
	if options.Network == "unix" {
		args = append(args, "-s", shellWord(options.Addr))
	} else if i := strings.LastIndexByte(options.Addr, ':'); i >= 0 {
		args = append(args, "-h", strings.Trim(options.Addr[:i], "[]"), "-p", options.Addr[i+1:])
	}
	if options.TLSConfig != nil {
		args = append(args, "--tls")
	}
	if options.Username != "" {
		args = append(args, "--user", shellWord(options.Username))
	}
	if options.Password != "" {
		args = append(args, "--askpass")
	}
	return strings.Join(append(args, "time"), " ") // which the relay's user may run
}

// shellWord quotes an argument for a shell where it needs that.
func shellWord(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_-./:@", c)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
