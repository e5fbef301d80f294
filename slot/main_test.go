package slot

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/stagedoor/walrelay/internal/testservers"
)

// common is one server for all tests that neither stop nor configure it.
var common = commonServer{}

func TestMain(m *testing.M) { goleak.VerifyTestMain(run{m}) }

// run ends the common server before goroutines are counted.
type run struct{ m *testing.M }

func (r run) Run() int {
	defer common.end()
	return r.m.Run()
}

// commonServer starts when a test wants it. It is a testservers.TB.
type commonServer struct {
	once     sync.Once
	server   *testservers.Postgres
	cleanups []func()
}

func (c *commonServer) get() *testservers.Postgres {
	c.once.Do(func() { c.server = testservers.StartPostgres(c, testservers.PostgresOptions{}) })
	return c.server
}

func (c *commonServer) end() {
	for i := len(c.cleanups) - 1; i >= 0; i-- {
		c.cleanups[i]()
	}
}

func (c *commonServer) Helper()                   {}
func (c *commonServer) Failed() bool              { return false }
func (c *commonServer) Cleanup(f func())          { c.cleanups = append(c.cleanups, f) }
func (c *commonServer) Logf(f string, a ...any)   { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (c *commonServer) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// onCommon is a database of its own on the common server. What a test leaves
// behind beside that, such as slots, goes at its end.
func onCommon(t *testing.T) *world {
	t.Helper()
	w := (&world{t: t, Postgres: common.get()}).fresh(t, usual)
	t.Cleanup(func() { // after the sessions of the test were closed
		w := &world{t: t, Postgres: w.Postgres, dsn: w.DSN("postgres")}
		eventually(t, "the slots of the test can be dropped", func() bool {
			return w.tryExec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots`) == nil
		})
	})
	return w
}
