package slot

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/internal/testservers"
)

// common is one server for all tests that neither stop nor configure it. It
// starts when the first of them wants it.
var common struct {
	sync.Once
	shared testservers.Shared
	server *testservers.Postgres
}

func TestMain(m *testing.M) {
	common.shared.M = m
	goleak.VerifyTestMain(&common.shared)
}

// onCommon is a database of its own on the common server. What a test leaves
// behind beside that, such as slots, goes at its end.
func onCommon(t *testing.T) *world {
	t.Helper()
	common.Do(func() { common.server = testservers.StartPostgres(&common.shared, testservers.PostgresOptions{}) })
	w := (&world{t: t, Postgres: common.server}).fresh(t, usual)
	t.Cleanup(func() { // after the sessions of the test were closed
		w := &world{t: t, Postgres: w.Postgres, dsn: w.DSN("postgres")}
		eventually(t, "the slots of the test can be dropped", func() bool {
			return w.tryExec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`) == nil
		})
	})
	return w
}
