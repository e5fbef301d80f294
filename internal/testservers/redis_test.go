package testservers

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestRedisKeepsWhatItsOptionsSay(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name string
		opts RedisOptions
		end  func(*Redis)
		kept bool
	}{
		{"durable, killed", RedisOptions{Durable: true}, (*Redis).Kill, true},
		{"durable, stopped", RedisOptions{Durable: true}, (*Redis).Stop, true},
		{"in memory, killed", RedisOptions{}, (*Redis).Kill, false},
		{"in memory, stopped", RedisOptions{}, (*Redis).Stop, false},
		{"arguments", RedisOptions{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}}, (*Redis).Kill, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := StartRedis(t, c.opts)
			client := r.Client(t)
			if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
				t.Fatal(err)
			}
			addr := r.Addr()
			c.end(r)
			if _, err := net.Dial("tcp", addr); r.Running() || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("the server is still there: %v", err)
			}
			r.Start()
			if r.Addr() != addr {
				t.Errorf("the address was %s and is %s", addr, r.Addr())
			}
			err := client.Get(ctx, "key").Err()
			if kept := !errors.Is(err, redis.Nil); kept != c.kept {
				t.Errorf("the key is kept: %v (%v); want %v", kept, err, c.kept)
			}
		})
	}
}

func TestRedisRestartKeepsItsArguments(t *testing.T) {
	ctx := context.Background()
	r := StartRedis(t, RedisOptions{Args: []string{"--maxmemory", "7mb"}})
	first := r.PID()
	r.Restart()
	if r.PID() == first {
		t.Error("the process is the same")
	}
	got, err := r.Client(t).ConfigGet(ctx, "maxmemory").Result()
	if err != nil || got["maxmemory"] != "7340032" {
		t.Errorf("maxmemory: %v, %v", got, err)
	}
}

func TestRedisAnswersUnderAllItsAddresses(t *testing.T) {
	ctx := context.Background()
	r := StartRedis(t, RedisOptions{})
	for _, url := range []string{r.URL(), "unix://" + r.Socket()} {
		opts, err := redis.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(opts)
		if err := client.Ping(ctx).Err(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		client.Close()
	}
}

func TestRedisThatAsksForAPasswordCounts(t *testing.T) {
	StartRedis(t, RedisOptions{Args: []string{"--requirepass", "secret"}})
}

// A child that rewrites the append-only file would go on writing into the
// directory of the next run.
func TestKilledRedisLeavesNoChild(t *testing.T) {
	ctx := context.Background()
	r := StartRedis(t, RedisOptions{Durable: true, Args: []string{"--rdb-key-save-delay", "10000000"}})
	client := r.Client(t)
	if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.BgSave(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	var children []int
	eventually(t, "wait for the child that saves", func() bool {
		children = descendants(r.PID())
		return len(children) > 0
	})
	r.Kill()
	for _, pid := range children {
		if state(pid) != 0 {
			t.Errorf("child %d is still there", pid)
		}
	}
	r.Start()
}

func TestFrozenRedisKeepsConnectionsAndAnswersAfterwards(t *testing.T) {
	ctx := context.Background()
	r := StartRedis(t, RedisOptions{})
	client := r.Client(t)
	if err := client.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	r.Freeze()
	if s := state(r.PID()); s != 'T' {
		t.Errorf("the frozen server is in state %c", s)
	}
	answer := make(chan error)
	go func() { answer <- client.WithTimeout(patience).Ping(ctx).Err() }()
	r.Thaw()
	if err := <-answer; err != nil {
		t.Error(err)
	}
}
