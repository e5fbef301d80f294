package publisher

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/testservers"
)

// Another program makes the stream anew before the next append, which would
// cover up that all entries are gone. The caller can go on from what is there.
func TestAppendNoticesThatTheStreamWasMadeAnew(t *testing.T) {
	for name, anew := range map[string]func(*fixture){
		"by a consumer": func(f *fixture) {
			if err := f.admin.XGroupCreateMkStream(f.t.Context(), "jobs", "workers", "$").Err(); err != nil {
				f.t.Error(err)
			}
		},
		"with a lower id":  func(f *fixture) { f.add("1-1") },
		"with a higher id": func(f *fixture) { f.add("*") },
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, testservers.RedisOptions{}, 0)
			f.append(0, state(1, 10), rows(1, 2, 3))
			f.add("*") // others may
			f.append(1, state(2, 20), nil)
			f.admin.XTrimMaxLen(t.Context(), "jobs", 0)
			f.append(2, state(3, 30), rows(4)) // and delete what they are done with
			f.admin.Del(t.Context(), "jobs")
			anew(f)
			for _, events := range [][]cdc.Event{nil, rows(5)} {
				res, err := f.pub.Append(t.Context(), key, version(3), state(4, 40), events)
				if err != nil || res.Done || res.MissingStream != "jobs" {
					t.Errorf("%+v, %v", res, err)
				}
			}
			f.wantVersion(3)
			_, streams, err := f.pub.Load(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			next := state(4, 40)
			next.LastIDs = map[string]string{"jobs": streams["jobs"].LastID}
			f.append(3, next, nil)
			f.append(4, state(5, 50), rows(5))
			f.append(5, state(6, 60), nil)
		})
	}
}

// add has another program append an entry.
func (f *fixture) add(id string) {
	f.t.Helper()
	err := f.admin.XAdd(f.t.Context(), &redis.XAddArgs{Stream: "jobs", ID: id, Values: []string{"outbox_id", "another's"}}).Err()
	if err != nil {
		f.t.Fatal(err)
	}
}
