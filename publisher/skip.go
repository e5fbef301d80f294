package publisher

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stagedoor/walrelay/cdc"
)

//go:embed skip.lua
var skipSource string

var skipScript = redis.NewScript(skipSource)

// skipPrefix begins the field of a request to skip a row.
const skipPrefix = "skip:"

// AskSkip asks the relay to skip rows that it cannot publish, as they are named
// in cdc.Blocked. It is false where the checkpoint is not the expected one any
// more, and then nothing was asked.
func (p *Publisher) AskSkip(ctx context.Context, key string, expected cdc.Version, at time.Time, rows ...string) (bool, error) {
	args := []any{expected.String(), at.UTC().Format(time.RFC3339)}
	for _, row := range rows {
		args = append(args, skipPrefix+row)
	}
	asked, err := skipScript.Run(ctx, p.client, []string{key}, args...).Bool()
	return asked, explain(err)
}

// WithdrawSkip takes requests back.
func (p *Publisher) WithdrawSkip(ctx context.Context, key string, rows ...string) error {
	var fields []string
	for _, row := range rows {
		fields = append(fields, skipPrefix+row)
	}
	return explain(p.client.HDel(ctx, key, fields...).Err())
}
