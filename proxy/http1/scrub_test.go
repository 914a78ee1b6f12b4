package http1_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestStatusLineIsMasked reads what HTTP/1.1 alone can carry: the reason phrase, chunks that divide the secret, a body that
// ends with the connection.
func TestStatusLineIsMasked(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	answers := []string{
		"HTTP/1.1 200 " + proxytest.ScrubbedToken + "\r\nX-" + hex.EncodeToString([]byte(proxytest.ScrubbedToken)) + ": 1\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"9\r\n" + proxytest.ScrubbedToken[:9] + "\r\nb;ext=1\r\n" + proxytest.ScrubbedToken[9:] + "\r\n0\r\nX-After: " + proxytest.ScrubbedToken + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n" + proxytest.ScrubbedToken + proxytest.ScrubbedToken[:7],
	}
	var n atomic.Int64
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			for _, b := range []byte(answers[n.Add(1)-1]) {
				_, _ = c.Write([]byte{b})
			}
		}
	})
	l.Scrub(port)
	for i, want := range []string{proxytest.ScrubStars, proxytest.ScrubStars + proxytest.ScrubbedToken[:7]} {
		c := l.DialPair(proxytest.API, port, true)
		res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
		body := proxytest.ReadAll(t, res.Body)
		if body != want || proxytest.Leak(fmt.Sprint(strings.ToLower(fmt.Sprint(res)), res.Trailer)) != "" || (i == 0 && res.Status != "200 "+proxytest.ScrubStars) {
			t.Errorf("%s %v %v: %q", res.Status, res.Header, res.Trailer, body)
		}
	}
}
