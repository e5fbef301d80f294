package slot

import (
	"context"
	"fmt"

	"github.com/stagedoor/walrelay/cdc"
	"github.com/stagedoor/walrelay/internal/pg"
)

// history reads how the server came to its timeline. The first timeline has no
// history: asking for it is an error.
//
// The file that has it is never removed by PostgreSQL, which does without it
// like the relay if somebody else has: it may be missing after a restore. Then
// the history is not known, and it is safe to go on. A checkpoint of an older
// timeline has nothing in common with the server, as far as is known, which is
// healed. One of the same timeline counts, and if the timelines have no more in
// common than their number, the checkpoint's own transaction is not met: that is
// how a restored volume is noticed, which keeps its timeline.
//
// https://www.postgresql.org/docs/current/protocol-replication.html
func (s *Session) history(ctx context.Context, timeline uint32) (cdc.History, error) {
	if timeline <= 1 {
		return nil, nil
	}
	row, err := s.command(ctx, fmt.Sprintf("TIMELINE_HISTORY %d", timeline))
	var history cdc.History
	switch {
	case err == nil && len(row) < 2:
		return nil, fmt.Errorf("read the history of timeline %d: the server answered with %q", timeline, row)
	case err == nil:
		history, err = cdc.ParseHistory(row[1])
	case pg.Code(err) != codeUndefinedFile:
		return nil, s.commandError(fmt.Sprintf("read the history of timeline %d", timeline), err)
	}
	if err != nil {
		s.log.Warn("the history of the server's timeline is not known", "timeline", timeline, "error", err)
		return nil, nil
	}
	return history, nil
}
