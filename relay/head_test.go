package relay

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/relay/h1"
)

// TestHeadsAreBounded: a head that is longer than it may be is refused, whether it has arrived whole or will never end.
func TestHeadsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 200
	const begin, end = "GET / HTTP/1.1\r\nHost: a\r\nX: ", "\r\n\r\n"
	fill := strings.Repeat("y", most-len(begin+end))
	for text, fits := range map[string]bool{
		begin + fill + end:              true,
		begin + fill + "y" + end:        false,
		begin + fill + "yyyyy":          false,
		begin + fill + end + "GET / HT": true,
	} {
		near, far := net.Pipe()
		go func() { _, _ = far.Write([]byte(text)) }()
		c := &Client{Conn: near, In: h1.Reader{Source: near}}
		var r h1.Request
		err := c.ReadHead(&r, most, time.Now().Add(time.Minute))
		var refused *h1.Error
		if fits && (err != nil || c.Head != most) || !fits && (!errors.As(err, &refused) || refused.Status != http.StatusRequestHeaderFieldsTooLarge) {
			t.Errorf("%d bytes: head of %d, %v", len(text), c.Head, err)
		}
		near.Close()
		far.Close()
	}
}
