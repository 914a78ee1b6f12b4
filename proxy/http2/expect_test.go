package http2_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/proxy/proxytest"
)

// begin sends the head of a request that a body follows, and returns its stream.
func (r *rawH2) begin(fields ...string) (id uint32) {
	r.t.Helper()
	r.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into memory
	}
	id = r.stream
	r.stream += 2
	if err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.Bytes(), EndHeaders: true}); err != nil {
		r.t.Fatal(err)
	}
	return id
}

// post is the head of a POST to api.example.com.
func post(port uint16, path string, more ...string) []string {
	return append([]string{":method", "POST", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", path}, more...)
}

// TestExpectation: a client that waits for 100 gets it once the server, of either version, reads the body. If the server answers
// without reading, the client gets the answer, and the body is not sent to the server.
func TestExpectation(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{true, false} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/no" {
				w.WriteHeader(413)
				return
			}
			b, _ := io.ReadAll(r.Body)
			w.WriteHeader(200 + len(b))
		})
		l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
		c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
		for range 2 { // the second time with the connection at hand
			id := c.begin(post(port, "/yes", "expect", "100-continue", "content-length", "5")...)
			if got := c.status(id); got != "100" {
				t.Fatalf("h2 %v: %s before the body", h2, got)
			}
			if err := c.framer.WriteData(id, true, []byte("hello")); err != nil {
				t.Fatal(err)
			}
			if got := c.status(id); got != "205" {
				t.Errorf("h2 %v: %s after the body", h2, got)
			}
			id = c.begin(post(port, "/no", "expect", "100-continue", "content-length", "5")...)
			if err := c.framer.WriteData(id, true, []byte("early")); err != nil {
				t.Fatal(err)
			}
			if got := c.status(id); got != "413" {
				t.Errorf("h2 %v: %s of a server that wants no body", h2, got)
			}
		}
		for _, e := range l.Events.Wait(t, 4) {
			if e.Path == "/no" && e.BytesOut > 0 {
				t.Errorf("h2 %v: %+v", h2, e)
			}
		}
	}
}

// TestAttackPartOfABodyTakenForTheWhole: of a client that resets its stream, or leaves, the server gets no request that looks whole,
// also where the gateway had to read the body before the server gets any of it.
func TestAttackPartOfABodyTakenForTheWhole(t *testing.T) {
	t.Parallel()
	for what, sign := range map[string]string{"passed on": "", "read first": `, "sign": {"hmac": {"key": "k", "header": "X-Signature", "template": "{body}"}}`} {
		for _, h2 := range []bool{true, false} {
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			come, end := make(chan bool), make(chan error)
			_, port := l.HTTPSServer(h2, func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadFull(r.Body, make([]byte, len("a part")))
				come <- true
				_, err := io.ReadAll(r.Body)
				end <- err
			})
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Rule": "in force"}`+sign+`}}`)
			for n, leave := range []func(c *rawH2, id uint32){
				func(c *rawH2, id uint32) { _ = c.framer.WriteRSTStream(id, http2.ErrCodeCancel) },
				func(c *rawH2, _ uint32) { _ = c.conn.Close() },
			} {
				c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
				id := c.begin(post(port, "/"+strconv.Itoa(n))...)
				if err := c.framer.WriteData(id, false, []byte("a part")); err != nil {
					t.Fatal(err)
				}
				if sign == "" {
					<-come
				}
				leave(c, id)
				if sign == "" {
					if err := <-end; err == nil {
						t.Errorf("%s, h2 %v: the server took a part for the whole", what, h2)
					}
				}
				l.Want("the end of the request", func(e audit.Event) bool {
					return e.Path == fmt.Sprintf("/%d", n) && e.Phase != audit.PhaseOpen && e.Error != "" && e.Status == 0
				})
			}
		}
	}
}
