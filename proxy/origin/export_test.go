package origin

import (
	"net"
	"testing"

	"boxgate/internal/socket"
)

// Start returns the kept part of the first bytes that a connection received.
func Start(t *testing.T, c net.Conn) []byte {
	t.Helper()
	for ; c != nil; c = below(c) {
		if o, ok := c.(*socket.Terminated); ok {
			return o.Start()
		}
	}
	t.Fatal("nothing notes the first bytes")
	return nil
}
