package http1_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestSmuggling sends what two parsers could read in two ways: 400 and close, and the upstream receives nothing whole.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var got atomic.Int32
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		for {
			if _, err := r.ReadByte(); err != nil {
				return
			}
			got.Add(1)
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	host := "Host: " + proxytest.HostPort(port) + "\r\n"
	for label, in := range map[string]string{
		"CL.TE":                    "POST / HTTP/1.1\r\n" + host + "Content-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
		"TE.CL":                    "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n5c\r\nGET /admin HTTP/1.1\r\n\r\n0\r\n\r\n",
		"TE.TE":                    "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n\r\n0\r\n\r\n",
		"TE with a space":          "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"TE with a tab":            "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding:\tchunked\x0b\r\n\r\n0\r\n\r\n",
		"TE, underscore":           "POST / HTTP/1.1\r\n" + host + "Transfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
		"repeated CL":              "POST / HTTP/1.1\r\n" + host + "Content-Length: 0\r\nContent-Length: 44\r\n\r\nGET /admin HTTP/1.1\r\n\r\n",
		"CL list":                  "POST / HTTP/1.1\r\n" + host + "Content-Length: 0, 44\r\n\r\n",
		"CL sign":                  "POST / HTTP/1.1\r\n" + host + "Content-Length: +0\r\n\r\n",
		"bare LF":                  "GET / HTTP/1.1\n" + host + "\r\n",
		"bare LF in a field":       "GET / HTTP/1.1\r\n" + host + "X: y\nTransfer-Encoding: chunked\r\n\r\n",
		"bare CR":                  "GET / HTTP/1.1\r\n" + host + "X: y\rTransfer-Encoding: chunked\r\n\r\n",
		"obs-fold":                 "GET / HTTP/1.1\r\n" + host + "X: y\r\n z\r\n\r\n",
		"NUL":                      "GET / HTTP/1.1\r\n" + host + "X: y\x00z\r\n\r\n",
		"two Hosts":                "GET / HTTP/1.1\r\n" + host + "Host: evil.example.com\r\n\r\n",
		"no Host":                  "GET / HTTP/1.1\r\n\r\n",
		"space in the target":      "GET / x HTTP/1.1\r\n" + host + "\r\n",
		"chunk extension":          "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5;x\r\nhello\r\n0\r\n\r\n",
		"chunk size, sign":         "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
		"chunk without CR":         "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"chunk, wrong size":        "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
		"TE in HTTP/1.0":           "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"large head":               "GET / HTTP/1.1\r\n" + host + "X: " + strings.Repeat("y", 70<<10) + "\r\n\r\n",
		"many fields":              "GET / HTTP/1.1\r\n" + host + strings.Repeat("X: y\r\n", 200) + "\r\n",
		"Connection names framing": "POST / HTTP/1.1\r\n" + host + "Connection: content-length\r\nContent-Length: 5\r\n\r\nhello",
	} {
		t.Run(label, func(t *testing.T) {
			c := l.DialPair(proxytest.API, port, true)
			before := got.Load()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_, _ = io.WriteString(c, in)
			}()
			r := bufio.NewReader(c)
			res := proxytest.ReadResponse(t, r, "GET")
			body := proxytest.ReadAll(t, res.Body)
			want := 400
			if label == "large head" {
				want = 431
			}
			if res.StatusCode != want || !res.Close || !strings.Contains(body, string(name.ReasonBadRequest)) {
				t.Errorf("%s, close %v: %s", res.Status, res.Close, body)
			}
			if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("the connection goes on: %v", err)
			}
			_ = c.Close()
			<-sent
			if got.Load() != before {
				t.Errorf("the upstream received %d bytes", got.Load()-before)
			}
		})
	}
}

// TestLateChunkErrorEndsTheRequest sends a good beginning first: what the upstream has of the request must not end well.
func TestLateChunkErrorEndsTheRequest(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	begun := make(chan struct{})
	end := make(chan string, 1)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		var all strings.Builder
		for {
			line, err := r.ReadString('\n')
			all.WriteString(line)
			if line == "hello\r\n" {
				close(begun)
			}
			if err != nil {
				end <- all.String()
				return
			}
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair(proxytest.API, port, true)
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"); err != nil {
		t.Fatal(err)
	}
	<-begun
	if _, err := io.WriteString(c, "5;x\r\nworld\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res := proxytest.ReadResponse(t, bufio.NewReader(c), "POST"); res.StatusCode != 400 || !res.Close {
		t.Errorf("%s, close %v", res.Status, res.Close)
	}
	if got := <-end; strings.Contains(got, "world") || strings.HasSuffix(got, "0\r\n\r\n") {
		t.Errorf("the upstream received %q", got)
	}
}
