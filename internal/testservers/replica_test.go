package testservers

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

var everySecond = RedisOptions{Args: []string{"--appendonly", "yes", "--appendfsync", "everysec"}}

func holds(t *testing.T, client *redis.Client, want ...string) {
	t.Helper()
	got, err := client.LRange(t.Context(), "kept", 0, -1).Result()
	if err != nil || len(got) != len(want) {
		t.Fatalf("the list is %v (%v), want %v", got, err, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the list is %v, want %v", got, want)
		}
	}
}

func push(t *testing.T, client *redis.Client, s string) {
	t.Helper()
	if err := client.RPush(t.Context(), "kept", s).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestPromotedReplicaLacksWhatItDidNotReceive(t *testing.T) {
	primary, replica := StartRedis(t, everySecond), StartRedis(t, everySecond)
	old, successor := primary.Client(t), replica.Client(t)
	push(t, old, "a")
	link := StartProxy(t, primary.Addr())
	replica.Follow(link.Addr())
	push(t, old, "b")
	eventually(t, "wait for the replica", func() bool { return successor.LLen(t.Context(), "kept").Val() == 2 })
	if err := successor.RPush(t.Context(), "kept", "x").Err(); err == nil {
		t.Error("a replica took a write")
	}
	replica.Restart()
	if err := successor.RPush(t.Context(), "kept", "x").Err(); err == nil {
		t.Error("a replica that was started again took a write")
	}
	replica.Follow(link.Addr()) // returns when they are in step again
	link.Stall()
	push(t, old, "c")
	primary.Kill()
	replica.Promote()
	push(t, successor, "d")
	holds(t, successor, "a", "b", "d")
	replica.Kill()
	replica.Start()
	push(t, successor, "e")
	holds(t, successor, "a", "b", "d", "e")

	// The old primary comes back as the replica.
	primary.Start()
	primary.Follow(replica.Addr())
	holds(t, old, "a", "b", "d", "e")
}

func TestRestoredRedisIsAsItWas(t *testing.T) {
	for name, opts := range map[string]RedisOptions{
		"append-only file": everySecond,
		"dump":             {Args: []string{"--save", "3600 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := StartRedis(t, opts)
			client := r.Client(t)
			push(t, client, "a")
			if name == "dump" {
				if err := client.Save(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			older := r.Snapshot()
			push(t, client, "b")
			r.Kill()
			r.Restore(older)
			r.Start()
			holds(t, client, "a")
			push(t, client, "c")
			r.Restart()
			holds(t, client, "a", "c")
		})
	}
}
