package ingress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/socket"
)

// delivered waits until all data written to a connection has arrived at its peer.
func (f *fixture) delivered(t *testing.T, c net.Conn) {
	tcp, _ := socket.TCP(c)
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	f.await(t, "the acknowledgement", func() bool {
		left := -1
		_ = raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return left == 0
	})
}

// Data that a box sends on an idle connection after its response is not used as the next response, with or without content,
// and the connection carries no further request.
func TestNothingUnaskedIsAnAnswer(t *testing.T) {
	t.Parallel()
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	for name, c := range map[string]struct{ method, answer, late string }{
		"content":    {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", poison},
		"chunks":     {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", poison},
		"HEAD":       {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n", poison},
		"no content": {"GET", "HTTP/1.1 204 No Content\r\n\r\n", poison},
		"a byte":     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "\r"},
	} {
		for _, next := range []string{"GET", "POST", "GET HTTP/2", "POST HTTP/2"} {
			t.Run(name+" "+next, func(t *testing.T) {
				t.Parallel()
				f := start(t, nil)
				read, sent, first := make(chan struct{}), make(chan struct{}), new(atomic.Bool)
				f.script(t, "one", func(s net.Conn, in *bufio.Reader) {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if first.Swap(true) {
						_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
						return
					}
					_, _ = io.WriteString(s, c.answer)
					<-read
					_, _ = io.WriteString(s, c.late)
					f.delivered(t, s)
					close(sent)
					if r, err := http.ReadRequest(in); err == nil {
						t.Errorf("another request comes over the connection: %s", r.Method)
					}
				})
				next, h2 := strings.CutSuffix(next, " HTTP/2")
				client := f.client(t, h2)
				do(t, client, c.method, "https://one"+domain+"/")
				close(read)
				<-sent
				if got := do(t, client, next, "https://one"+domain+"/"); got != "true" {
					t.Errorf("the next response is %q", got)
				}
			})
		}
	}
}

// do makes a request without a body and returns the body of the response.
func do(t *testing.T, client *http.Client, method, url string) string {
	t.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(body)
}
