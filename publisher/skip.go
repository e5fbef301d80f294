package publisher

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed skip.lua
var skipSource string

var skipScript = redis.NewScript(skipSource)

// skipPrefix begins the field of a request to skip a row.
const skipPrefix = "skip:"

// AskSkip asks the relay to skip rows that it cannot publish. It is false where
// there is no checkpoint, and then nothing was asked.
func (p *Publisher) AskSkip(ctx context.Context, key string, at time.Time, rows ...string) (bool, error) {
	args := []any{at.UTC().Format(time.RFC3339)}
	for _, row := range rows {
		args = append(args, skipPrefix+row)
	}
	asked, err := skipScript.Run(ctx, p.client, []string{key}, args...).Bool()
	return asked, explain(err)
}
