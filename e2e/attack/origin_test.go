package attack

import (
	"context"
	"net"
)

// onceDial gives out one connection, to whoever dials first.
func onceDial(c net.Conn) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		if c == nil {
			return nil, net.ErrClosed
		}
		once := c
		c = nil
		return once, nil
	}
}
