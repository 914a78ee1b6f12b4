package relay

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/relay/h1"
)

// TestDeadlinesOfEarlierReads has each read end at its own time: a deadline that is left over from an earlier one ends
// none too early, and one that lies further away none too late.
func TestDeadlinesOfEarlierReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		h := &Client{Conn: near, In: h1.Reader{Source: near}}
		for i, step := range []struct{ limit, data time.Duration }{
			{250 * time.Millisecond, 100 * time.Millisecond},
			{30 * time.Second, 10 * time.Second}, // while the first deadline expires
			{30 * time.Second, 0},
			{time.Second, 500 * time.Millisecond},
			{5 * time.Minute, 4 * time.Minute},
			{250 * time.Millisecond, 0},
			{250 * time.Millisecond, 249 * time.Millisecond},
		} {
			begun := time.Now()
			if step.data > 0 {
				time.AfterFunc(step.data, func() { _, _ = far.Write([]byte("x")) })
			}
			err := h.ReadUntil(begun.Add(step.limit), h.In.Fill)
			took := time.Since(begun)
			if step.data > 0 && (err != nil || took != step.data) {
				t.Errorf("read %d: %v after %v, want data after %v", i, err, took, step.data)
			}
			if step.data == 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || took != step.limit) {
				t.Errorf("read %d: %v after %v, want none after %v", i, err, took, step.limit)
			}
		}
	})
}
