package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// partitioned is a world whose outbox is partitioned by region, with room for
// more. It notes what was inserted, in order, since PostgreSQL's own decoder
// tells partitions, not the table.
type partitioned struct {
	*world
	inserted []string
}

func newPartitioned(t *testing.T) *partitioned {
	t.Helper()
	w := newWorld(t, worldOptions{})
	w.exec(`DROP TABLE outbox;
		CREATE SEQUENCE outbox_ids;
		CREATE TABLE outbox (
			id bigint DEFAULT nextval('outbox_ids'), region text, kind text NOT NULL, payload jsonb NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz,
			PRIMARY KEY (id, region)) PARTITION BY LIST (region);
		CREATE INDEX ON outbox (id) WHERE published_at IS NULL;
		CREATE TABLE outbox_north PARTITION OF outbox FOR VALUES IN ('north');
		CREATE TABLE outbox_south PARTITION OF outbox FOR VALUES IN ('south')`)
	return &partitioned{world: w}
}

// insertIn commits rows in these regions, one each.
func (w *partitioned) insertIn(regions ...string) {
	w.t.Helper()
	for _, region := range regions {
		w.exec(fmt.Sprintf(`INSERT INTO outbox (region, kind, payload) VALUES ('%s', '%s', '{}')`, region, region))
		w.inserted = append(w.inserted, w.query(`SELECT last_value FROM outbox_ids`))
	}
}

// arrived waits until all is on the stream, and compares.
func (w *partitioned) arrived() {
	w.t.Helper()
	w.hasEntries(len(w.inserted))
	entries, err := w.entries()
	if err != nil {
		w.t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, fmt.Sprint(e.Values["outbox_id"]))
		if fields := slices.Sorted(maps.Keys(e.Values)); !slices.Equal(fields, []string{"kind", "outbox_id", "payload"}) || e.Values["payload"] != "{}" {
			w.t.Errorf("an entry is %v", e.Values)
		}
	}
	if !slices.Equal(ids, w.inserted) {
		w.t.Errorf("on the stream are %v, inserted were %v", ids, w.inserted)
	}
}

// Partitions come and go while the relay streams, in any form. Their rows arrive
// as the table's, and nothing else does.
func TestPartitionsComeAndGo(t *testing.T) {
	t.Parallel()
	w := newPartitioned(t)
	w.insertIn("north", "south") // these come by a backfill
	p := w.startRelay()
	p.streams()
	w.insertIn("south", "north")

	w.exec(`CREATE TABLE outbox_east PARTITION OF outbox FOR VALUES IN ('east')`)
	w.insertIn("east", "north", "east")

	// Attached, empty, with its columns in another order and one that was dropped.
	w.exec(`CREATE TABLE outbox_west (gone int, payload jsonb NOT NULL, published_at timestamptz, kind text NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now(), region text NOT NULL, id bigint NOT NULL DEFAULT nextval('outbox_ids'));
		ALTER TABLE outbox_west DROP COLUMN gone;
		ALTER TABLE outbox ATTACH PARTITION outbox_west FOR VALUES IN ('west')`)
	w.insertIn("west", "south", "west")

	w.exec(`CREATE TABLE outbox_up PARTITION OF outbox FOR VALUES IN ('up') PARTITION BY RANGE (id);
		CREATE TABLE outbox_up_all PARTITION OF outbox_up DEFAULT`)
	w.insertIn("up", "up")
	w.exec(`CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT`)
	w.insertIn("somewhere", "elsewhere")
	w.exec(`INSERT INTO outbox_east (region, kind, payload) VALUES ('east', 'into the partition', '{}')`)
	w.inserted = append(w.inserted, w.query(`SELECT last_value FROM outbox_ids`))

	w.arrived()
	w.allMarked()
	w.exec(`ALTER TABLE outbox DETACH PARTITION outbox_south`)
	w.insertIn("north")
	w.exec(`INSERT INTO outbox_south (region, kind, payload) VALUES ('south', 'no longer of the outbox', '{}')`)
	w.exec(`DROP TABLE outbox_south; DROP TABLE outbox_west; TRUNCATE outbox_north`)
	w.insertIn("north", "west", "up") // west is kept by the default partition
	w.arrived()
	w.allMarked()
	w.confirmedPast()

	p.kill()
	w.insertIn("north", "east")
	w.exec(`ALTER TABLE outbox DETACH PARTITION outbox_east`)
	w.insertIn("somewhere")
	p = w.startRelay()
	p.streams()
	w.insertIn("last")
	w.arrived()
	w.confirmedPast()
	for _, partition := range []string{"outbox_", "north ", "publishes partitions"} {
		if strings.Contains(p.log.String(), partition) {
			t.Errorf("the log tells of partitions: %q", partition)
		}
	}
}

// An UPDATE moves published rows to another partition, which PostgreSQL sends as
// new rows. They are no entries.
func TestRowsMoveBetweenPartitions(t *testing.T) {
	t.Parallel()
	w := newPartitioned(t)
	w.insertIn("north", "south")
	p := w.startRelay()
	p.streams()
	w.insertIn("north", "north", "south")
	w.arrived()
	w.allMarked()
	w.exec(`UPDATE outbox SET region = 'south' WHERE region = 'north'`)
	w.insertIn("north")
	w.arrived()
	w.allMarked()
	p.stop()
	w.exec(`UPDATE outbox SET region = 'north' WHERE region = 'south'`)
	w.exec(`UPDATE outbox SET id = id + 1000, region = 'south' WHERE id < 3`)
	p = w.startRelay()
	p.streams()
	w.insertIn("south")
	w.arrived()
	w.allMarked()
	w.confirmedPast()
}

// The exception: an UPDATE moves a row before it is marked, and to PostgreSQL's
// log it is a new one. It has two entries, with one id.
func TestRowThatMovesBeforeItIsMarked(t *testing.T) {
	t.Parallel()
	w := newPartitioned(t)
	p := w.startRelay()
	p.streams()
	w.insertIn("north")
	w.arrived()
	w.allMarked()
	w.toRedis.Cut()
	w.insertIn("north")
	w.exec(`UPDATE outbox SET region = 'south' WHERE published_at IS NULL`)
	w.inserted = append(w.inserted, w.inserted[1])
	w.toRedis.Restore()
	w.insertIn("north")
	w.arrived()
	w.allMarked()
	w.confirmedPast()
}

// A partition is attached with rows in it, which are in no log as rows of the
// outbox. The table tells of them: they are put back in seconds, each once.
func TestRowsOfAnAttachedPartition(t *testing.T) {
	t.Parallel()
	w := newPartitioned(t)
	p := w.startRelay()
	p.streams()
	w.insertIn("north", "south")
	w.arrived()
	w.allMarked()
	w.exec(`CREATE TABLE filled (LIKE outbox INCLUDING DEFAULTS);
		INSERT INTO filled (id, region, kind, payload) SELECT 1000 + i, 'far', 'attached', to_jsonb(i) FROM generate_series(1, 5) i;
		ALTER TABLE outbox ATTACH PARTITION filled FOR VALUES IN ('far')`)
	w.allMarked()
	w.each("attached")
	if got := p.metric(`walrelay_heals_total{reason="missed"}`); got != "1" {
		t.Errorf("%s heals", got)
	}
	w.insertIn("north")
	w.allMarked()
	w.confirmedPast()
}
