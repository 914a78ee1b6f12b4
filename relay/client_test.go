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

var errCutTest = errors.New("cut")

// cutAt is a connection that was cut, and may be written to until a time.
type cutAt time.Time

func (c cutAt) Cut() (by time.Time, err error) { return time.Time(c), errCutTest }

// TestCutOutlivesLaterDeadlines: a client that was cut is neither read from any more, nor written to for as long as one that does not
// read, although the deadlines of the cut may be overwritten.
func TestCutOutlivesLaterDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		begun := time.Now()
		c := &Client{Conn: near, In: h1.Reader{Source: near}, Stall: time.Hour, Cuts: cutAt(begun.Add(time.Second))}
		c.Out.Buf = append(c.Out.Take(), "unread"...)
		if err := c.Flush(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("written: %v after %v", err, time.Since(begun))
		}
		begun = time.Now()
		if err := c.ReadUntil(begun.Add(time.Hour), c.In.Fill); !errors.Is(err, errCutTest) || time.Since(begun) != 0 {
			t.Errorf("read: %v after %v", err, time.Since(begun))
		}
		c.Out.Give()
	})
}

// TestClientThatDoesNotRead: who takes nothing of what is written for the whole time has gone; nobody else has.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		defer near.Close()
		c := &Client{Conn: near, Stall: time.Minute}
		begun := time.Now()
		for range 3 {
			time.AfterFunc(25*time.Second, func() { _, _ = far.Read(make([]byte, 64)) })
			c.Out.Buf = append(c.Out.Take(), "read late"...)
			if err := c.Flush(); err != nil {
				t.Errorf("written: %v after %v", err, time.Since(begun))
			}
		}
		begun = time.Now()
		c.Out.Buf = append(c.Out.Take(), "never read"...)
		if err := c.Flush(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) > time.Minute {
			t.Errorf("written: %v after %v", err, time.Since(begun))
		}
		c.Out.Give()
	})
}
