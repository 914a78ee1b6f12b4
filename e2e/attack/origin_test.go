package attack

import (
	"context"
	"net"
)

// onceDial returns one connection to the first caller.
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
