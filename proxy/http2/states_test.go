package http2_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/proxytest"
)

// TestDataBehindTheEndOfARequest sends DATA on streams that the client has ended, while they are answered and after that:
// the stream error is always STREAM_CLOSED (RFC 9113, 5.1). Many connections do so in parallel, as the answer must not depend on
// the order of goroutines.
func TestDataBehindTheEndOfARequest(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	page := strings.Repeat("0123456789abcdef", 32)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(page)) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 60 {
				if got := dataAfterEnd(t, l, port, i%2 == 1); got != "STREAM_CLOSED" {
					t.Errorf("round %d: %s", i, got)
					return
				}
			}
		})
	}
	all.Wait()
}

// dataAfterEnd makes a request and sends DATA behind its end, late: once the answer is complete. It returns the code of the
// reset that follows.
func dataAfterEnd(t *testing.T, l *proxytest.Rig, port uint16, late bool) string {
	conn := l.DialPair(proxytest.API, port, true, "h2")
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	c := newRawH2(t, conn)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", proxytest.HostPort(port)}, {":path", "/"}} {
		_ = c.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into a buffer
	}
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.buf.Bytes(), EndStream: true, EndHeaders: true})
	if !late {
		err = errors.Join(err, c.framer.WriteData(1, true, []byte("test")))
	}
	for seen := ""; err == nil; {
		var f http2.Frame
		if f, err = c.framer.ReadFrame(); errors.Is(err, os.ErrDeadlineExceeded) {
			return "nothing after" + seen
		} else if err != nil {
			break
		}
		seen += " " + f.Header().String()
		switch f := f.(type) {
		case *http2.DataFrame:
			if late && f.StreamEnded() {
				err = c.framer.WriteData(1, true, []byte("test"))
			}
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		}
	}
	return err.Error()
}
