package publisher

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/fault"
)

// commands are those that a relay needs, as an ACL allows them: teardown EXISTS,
// and a heal or a refused entry some that are not needed otherwise.
const commands = "+eval +evalsha +hmget +hgetall +hset +hdel +del +type +xadd +xdel +xinfo|stream +xrange +xrevrange +time +exists +client|setname +hello +select"

// onCluster is what to do about a Redis Cluster.
const onCluster = "this is a Redis Cluster, which this release does not support: use a single server"

// remedies are what Redis answers, by the start or a part of its error, and
// what repairs it. The first match counts.
var remedies = []struct {
	text      string
	permanent bool // does not go away by itself
	fix       string
}{
	{"WRONGTYPE", true, "move the key away (RENAME), or choose another stream with --stream"},
	{"NOPERM", true, "allow the Redis user the commands and keys that walrelay needs: ACL SETUSER … ~STREAM ~STREAM:dead ~walrelay:* " + commands},
	{"can't run this command", true, "allow the Redis user the command that the script needs: ACL SETUSER … +hmget +hgetall +hset +hdel +del +type +xadd +xdel +xinfo|stream"},
	{"can't access at least one of the keys", true, "allow the Redis user the stream, its dead stream and the checkpoint: ACL SETUSER … ~STREAM ~STREAM:dead ~walrelay:*"},
	{"NOAUTH", true, "put the password into --redis, as in redis://:PASSWORD@HOST:PORT/DB"},
	{"WRONGPASS", true, "correct the user and password in --redis"},
	{"invalid password", true, "correct the user and password in --redis"},
	{"DB index is out of range", true, "correct the database number at the end of --redis"},
	{"unknown command", true, newerRedis + ", or a server that has EVAL and streams, and does not rename their commands"},
	{"exhausted the last possible ID", true, "the stream's ids are used up: choose another stream with --stream"},
	{"MOVED", true, onCluster},
	{"CROSSSLOT", true, onCluster},
	{"OOM", false, "raise Redis' maxmemory, or remove data (maxmemory-policy noeviction is right: eviction would lose rows)"},
	{"MISCONF", false, "Redis cannot write its snapshot: free its disk, or CONFIG SET stop-writes-on-bgsave-error no"},
	{"READONLY", false, "this Redis is a replica: wait for the failover to end, or point --redis at the primary"},
	{"NOREPLICAS", false, "Redis waits for replicas (min-replicas-to-write)"},
	{"LOADING", false, "Redis loads its data after a start"},
	{"MASTERDOWN", false, "this Redis is a replica without a primary"},
	{"BUSY", false, "Redis runs another script for too long: SCRIPT KILL ends it"},
}

// refusals are parts of what Redis answers to an entry that it never takes.
var refusals = []string{
	"invalid bulk length",    // a value beyond proto-max-bulk-len
	"Elements are too large", // an entry beyond what a stream can hold
}

// refusal is why Redis never takes these entries; empty for any other error.
func refusal(err error) string {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	for _, r := range refusals {
		if strings.Contains(reply.Error(), r) {
			return reply.Error()
		}
	}
	return ""
}

// remedy is what repairs an answer of Redis, empty if that is not known, and
// whether it does not go away by itself.
func remedy(text string) (fix string, permanent bool) {
	for _, r := range remedies {
		if strings.Contains(text, r.text) {
			return r.fix, r.permanent
		}
	}
	return "", false
}

// explain adds to an error of Redis what it means. What does not go away by
// itself becomes a fault.
func explain(err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return fmt.Errorf("%w: %w", cdc.ErrNoAnswer, err)
	}
	switch fix, permanent := remedy(reply.Error()); {
	case fix == "":
		return err
	case permanent:
		return &fault.Error{Problem: "Redis answers", Err: err, Fix: fix}
	default:
		return fmt.Errorf("%w (from Redis); %s", err, fix)
	}
}
