package harness

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// Chatter keeps a connection or UDP flow busy and records the time of the last answer.
type Chatter struct {
	Conn  net.Conn
	Heard atomic.Int64  // time of the last answer in nanoseconds
	Count atomic.Int64  // number of answers
	Ended chan struct{} // closed on a write error, or on stop
	stop  atomic.Bool
}

// Chat sends a word every millisecond and reads the answers.
func (r *Raider) Chat(network string, to netip.AddrPort) *Chatter {
	r.T.Helper()
	c := &Chatter{Conn: r.MustDial(network, to), Ended: make(chan struct{})}
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Conn.Read(buf); err != nil && (network == "tcp" || errors.Is(err, net.ErrClosed)) {
				return
			} else if err == nil {
				c.Heard.Store(time.Now().UnixNano())
				c.Count.Add(1)
			}
		}
	}()
	go func() {
		defer close(c.Ended)
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		for !c.stop.Load() {
			if _, err := c.Conn.Write([]byte("still there\n")); err != nil && network == "tcp" {
				return
			}
			<-pace.C
		}
	}()
	r.T.Cleanup(func() {
		c.stop.Store(true)
		c.Conn.Close()
		<-c.Ended
	})
	r.Until(fmt.Sprintf("%s to %v answers", network, to), func() bool { return c.Count.Load() > 3 })
	return c
}
