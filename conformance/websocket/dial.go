package websocket

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

//lint:file-ignore SA1019 net/http's own client refuses the field :protocol.

// Dialer opens a WebSocket to the host of a run. offer is the value of Sec-WebSocket-Extensions, "" for none. It
// returns the connection and the server's value. Safe for concurrent use.
type Dialer func(ctx context.Context, offer string) (rw io.ReadWriteCloser, answer string, err error)

// dialTLS connects to port 443 of a host, using the machine's resolver and roots.
func dialTLS(ctx context.Context, host, alpn string) (net.Conn, error) {
	d := tls.Dialer{Config: &tls.Config{NextProtos: []string{alpn}, MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, "443"))
	if err != nil {
		return nil, err
	}
	if got := conn.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != alpn {
		_ = conn.Close()
		return nil, fmt.Errorf("the server chose %q, not %s", got, alpn)
	}
	return conn, nil
}

// HTTP1 opens each WebSocket on a separate connection, by an upgrade (RFC 6455, 4.1).
func HTTP1(host string) Dialer {
	return func(ctx context.Context, offer string) (io.ReadWriteCloser, string, error) {
		conn, err := dialTLS(ctx, host, "http/1.1")
		if err != nil {
			return nil, "", err
		}
		rw, answer, err := shakeHands(conn, host, offer)
		if err != nil {
			_ = conn.Close()
		}
		return rw, answer, err
	}
}

func shakeHands(conn net.Conn, host, offer string) (io.ReadWriteCloser, string, error) {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	key := base64.StdEncoding.EncodeToString(nonce)
	request := "GET /echo HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: " + key + "\r\nSec-WebSocket-Version: 13\r\n"
	if offer != "" {
		request += "Sec-WebSocket-Extensions: " + offer + "\r\n"
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
		return nil, "", err
	}
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil) //nolint:bodyclose // the connection follows the response
	if err != nil {
		return nil, "", err
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-WebSocket-Accept") != acceptKey(key) {
		return nil, "", fmt.Errorf("the upgrade was answered with %s %v", res.Status, res.Header)
	}
	_ = conn.SetDeadline(time.Time{})
	return hijacked{conn, r}, res.Header.Get("Sec-WebSocket-Extensions"), nil
}

// HTTP2 opens the WebSockets as streams of one connection, by extended CONNECT (RFC 8441). Go's servers support it only
// with package h2connect.
func HTTP2(host string) Dialer {
	client := sync.OnceValues(func() (*http2.ClientConn, error) {
		conn, err := dialTLS(context.Background(), host, "h2")
		if err != nil {
			return nil, err
		}
		return (&http2.Transport{}).NewClientConn(conn)
	})
	return func(ctx context.Context, offer string) (io.ReadWriteCloser, string, error) {
		cc, err := client()
		if err != nil {
			return nil, "", err
		}
		pr, pw := io.Pipe()
		ctx, cancel := context.WithCancel(ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodConnect, "https://"+host+"/echo", pr)
		if err != nil {
			cancel()
			return nil, "", err
		}
		req.Header[":protocol"] = []string{"websocket"}
		req.Header.Set("Sec-WebSocket-Version", "13")
		if offer != "" {
			req.Header.Set("Sec-WebSocket-Extensions", offer)
		}
		res, err := cc.RoundTrip(req) //nolint:bodyclose // the body is the stream and is closed with it
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("the extended CONNECT was answered with %s", res.Status)
		}
		if err != nil {
			cancel()
			return nil, "", err
		}
		return clientStream{res.Body, pw, cancel}, res.Header.Get("Sec-WebSocket-Extensions"), nil
	}
}

// clientStream is the client side of an extended CONNECT.
type clientStream struct {
	io.ReadCloser
	w      *io.PipeWriter
	cancel context.CancelFunc
}

// Write implements io.Writer.
func (s clientStream) Write(p []byte) (int, error) { return s.w.Write(p) }

// Close resets the stream if it has not ended.
func (s clientStream) Close() error {
	_ = s.w.Close()
	s.cancel()
	return s.ReadCloser.Close()
}

// hijacked is a connection and the data already read from it.
type hijacked struct {
	net.Conn
	r io.Reader
}

// Read implements io.Reader.
func (h hijacked) Read(p []byte) (int, error) { return h.r.Read(p) }

// CloseWrite closes the sending side.
func (h hijacked) CloseWrite() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// serverStream is the server side of an extended CONNECT.
type serverStream struct {
	io.ReadCloser
	w          http.ResponseWriter
	controller *http.ResponseController
}

func overHTTP2(w http.ResponseWriter, r *http.Request) (io.ReadWriteCloser, error) {
	s := serverStream{r.Body, w, http.NewResponseController(w)}
	w.WriteHeader(http.StatusOK)
	return s, s.controller.Flush()
}

// Write flushes after every write.
func (s serverStream) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.controller.Flush()
}

// SetReadDeadline sets the deadline of reads.
func (s serverStream) SetReadDeadline(t time.Time) error { return s.controller.SetReadDeadline(t) }
