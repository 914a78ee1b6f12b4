package origin

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// upstreamTick is how often a read from the upstream checks that the client is still connected.
const upstreamTick = 5 * time.Second

// clientAwareReader reads from an upstream while its client is connected.
type clientAwareReader struct {
	conn net.Conn
	ctx  context.Context
	gone func() bool
}

// ErrClientGone ends a read from a server because the client disconnected.
var ErrClientGone = errors.New("the client disconnected")

// begin must be called before the reads of each exchange.
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
