package testservers

import (
	"context"
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	at := time.Now()
	pg := StartPostgres(t, PostgresOptions{})
	t.Log("pg", time.Since(at))
	at = time.Now()
	pg2 := StartPostgres(t, PostgresOptions{})
	t.Log("pg", time.Since(at))
	t.Log(pg.NewDatabase(t), pg2.Addr())
	at = time.Now()
	pg.Kill()
	t.Log("kill", time.Since(at))
	at = time.Now()
	pg.Start()
	t.Log("start", time.Since(at))
	at = time.Now()
	pg.Restart("fast")
	pg.Restart("immediate")
	t.Log("restart x2", time.Since(at))
	pg.Freeze()
	pg.Thaw()
	pg2.Kill()
	at = time.Now()
	r := StartRedis(t, RedisOptions{Durable: true})
	t.Log("redis", time.Since(at))
	c := r.Client(t)
	c.Set(context.Background(), "a", "b", 0)
	r.Kill()
	r.Start()
	p := StartProxy(t, r.Addr())
	_ = p
	t.Log(c.Get(context.Background(), "a"))
	t.Cleanup(func() { at = time.Now() })
	t.Cleanup(func() { t.Log(at) })
}
