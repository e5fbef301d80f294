package relay

import (
	"sync"
	"time"
)

// beatEvery is well below what a loop may take for one turn.
const beatEvery = 5 * time.Second

// keepBeating beats for a loop that waits for one answer of a server, which can
// take longer than a turn may and is bounded elsewhere, or takes what it takes:
// counting and sorting a table, marking rows on a slow disk, trying one host
// after the other. The loop does not stand still then. The function that it
// returns ends that; it may be called again.
func keepBeating(beat func()) (settled func()) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(beatEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				beat()
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
}
