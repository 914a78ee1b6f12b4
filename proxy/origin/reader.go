package origin

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// upstreamTick is how often a wait for the upstream looks whether the client is still there.
const upstreamTick = 5 * time.Second

// clientAwareReader reads from an upstream for as long as its client is there.
type clientAwareReader struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool
}

// ErrClientGone ends a wait for a server whose client has gone.
var ErrClientGone = errors.New("the client has gone")

// begin must be called before the reads of one exchange.
func (r *clientAwareReader) begin() { _ = r.conn.SetReadDeadline(time.Now().Add(upstreamTick)) }

func (r *clientAwareReader) Read(b []byte) (int, error) {
	for {
		n, err := r.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if err := r.ctx.Err(); err != nil {
			return 0, err
		}
		if r.gone() {
			return 0, ErrClientGone
		}
		r.begin()
	}
}
