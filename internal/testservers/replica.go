package testservers

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Follow makes a server a replica of the one at addr (host:port), over restarts
// too, and returns when it has that one's data. Where addr is a proxy's, its
// stalling lets the replica fall behind; what is written meanwhile, a promotion
// loses.
// https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
func (r *Redis) Follow(addr string) {
	r.t.Helper()
	patient(r.t, r.name+" follows "+addr, func(ctx context.Context) error { return r.TryFollow(ctx, addr) })
}

// TryFollow is Follow with an error.
func (r *Redis) TryFollow(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	if err := client.ReplicaOf(ctx, host, port).Err(); err != nil {
		return err
	}
	r.from.Store(&addr)
	// A replica that got a new copy of the data writes a new append-only file:
	// until that is done it keeps nothing over a restart, and refuses SIGTERM.
	return poll(ctx, func() bool {
		info, err := client.Info(ctx, "replication", "persistence").Result()
		return err == nil && strings.Contains(info, "master_link_status:up") &&
			strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	})
}

// Promote makes a replica a primary (REPLICAOF NO ONE), over restarts too. What
// it did not receive of its old primary's writes is lost.
func (r *Redis) Promote() {
	r.t.Helper()
	patient(r.t, "promote "+r.name, r.TryPromote)
}

// TryPromote is Promote with an error.
func (r *Redis) TryPromote(ctx context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer client.Close()
	if err := client.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		return fmt.Errorf("REPLICAOF NO ONE: %w", err)
	}
	r.from.Store(nil)
	return nil
}

// following are the arguments of a replica.
func (r *Redis) following() []string {
	addr := r.from.Load()
	if addr == nil {
		return nil
	}
	host, port, _ := net.SplitHostPort(*addr)
	return []string{"--replicaof", host + " " + port}
}
