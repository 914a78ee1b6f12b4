package relay

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// patient expects a response for ever.
type patient struct{}

func (patient) Interrupted() error { return nil }

func (patient) Expected(time.Duration) (time.Duration, error) { return time.Second, nil }

// TestDeadlinesOfEarlierExchanges: a deadline that has passed while a connection was idle does not keep the next request from being sent.
func TestDeadlinesOfEarlierExchanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		r := &ServerReader{Conn: near, Now: true}
		for _, idle := range []time.Duration{0, 900 * time.Millisecond, time.Second, time.Hour} {
			time.Sleep(idle)
			r.Begin(patient{}, time.Second)
			begun := time.Now()
			if _, err := r.Read(make([]byte, 1)); err == nil || time.Since(begun) < time.Second/4 {
				t.Errorf("idle for %v: a read ends after %v: %v", idle, time.Since(begun), err)
			}
			r.Begin(patient{}, time.Second)
		}
	})
}
