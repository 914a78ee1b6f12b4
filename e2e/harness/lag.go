package harness

import (
	"sync/atomic"
	"testing"
	"time"
)

// Lag returns what tells by how much this process has been late at most since the call, for as long as the test runs: what a
// busy machine adds to a time that a test takes.
func Lag(t *testing.T) func() time.Duration {
	const pace = time.Millisecond
	var most atomic.Int64
	tick := time.NewTicker(pace)
	go func() {
		defer tick.Stop()
		for last := time.Now(); t.Context().Err() == nil; {
			<-tick.C
			now := time.Now()
			most.Store(max(most.Load(), int64(now.Sub(last)-pace)))
			last = now
		}
	}()
	return func() time.Duration { return time.Duration(most.Load()) }
}
