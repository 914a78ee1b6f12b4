package harness

import (
	"sync/atomic"
	"testing"
	"time"
)

// Lag returns a function that reports the longest scheduling delay of this process since the call, up to the end of the
// test. A busy machine can add that much to a measured time.
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
