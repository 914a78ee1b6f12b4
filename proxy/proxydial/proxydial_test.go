package proxydial

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// answers is a proxy that sends text, whatever the request, and then the server's data.
func answers(t *testing.T, text string) net.Conn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, text)
		_, _ = io.Copy(io.Discard, c)
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestConnectTakesNoByteOfTheServer: the server's data right after the proxy's answer is not consumed.
func TestConnectTakesNoByteOfTheServer(t *testing.T) {
	t.Parallel()
	as := &Credentials{"user", name.NewSecret("canary")}
	for text, scheme := range map[string]policy.ProxyScheme{
		"HTTP/1.1 200 OK\r\n\r\nhello":                                                       policy.ProxyHTTP,
		"HTTP/1.0 200 Connection established\r\nProxy-Agent: x\r\n\r\nhello":                 policy.ProxyHTTP,
		"HTTP/1.1 204 None\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\nhello": policy.ProxyHTTP,
		"\x05\x02\x01\x00\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00hello":                      policy.ProxySOCKS5,
		"\x05\x00\x05\x00\x00\x03\x04name\x00\x00hello":                                      policy.ProxySOCKS5,
		"\x05\x00\x05\x00\x00\x04" + strings.Repeat("\x00", 18) + "hello":                    policy.ProxySOCKS5,
	} {
		c := answers(t, text)
		if err := Connect(t.Context(), c, scheme, "server.test:443", as); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("%q: %q, %v", text, b, err)
		}
	}
}

// TestConnectFails: an invalid answer, or a refusal, is an error that quotes neither the proxy nor the credentials.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	as := &Credentials{"user", name.NewSecret("canary")}
	for text, scheme := range map[string]policy.ProxyScheme{
		"HTTP/1.1 407 canary\r\nX: canary\r\n\r\n":                  policy.ProxyHTTP,
		"HTTP/1.1 302 Found\r\nLocation: http://canary/\r\n\r\n":    policy.ProxyHTTP,
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n":      policy.ProxyHTTP,
		"HTTP/2.0 200 OK\r\n\r\n":                                   policy.ProxyHTTP,
		"HTTP/0.9 200 OK\r\n\r\n":                                   policy.ProxyHTTP,
		"canary hello\r\n\r\n":                                      policy.ProxyHTTP,
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("canary", 10_000): policy.ProxyHTTP,
		"\x05\xff":                 policy.ProxySOCKS5,
		"\x05\x02\x01\x01":         policy.ProxySOCKS5,
		"\x04\x00canary":           policy.ProxySOCKS5,
		"\x05\x00\x05\x05\x00\x01": policy.ProxySOCKS5,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := Connect(ctx, answers(t, text), scheme, "server.test:443", as)
		cancel()
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestConnectEndsWithItsContext: a proxy with no answer, or an incomplete one, does not block beyond the context.
func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for text, scheme := range map[string]policy.ProxyScheme{"": policy.ProxyHTTP, "HTTP/1.1 200 OK\r\n": policy.ProxyHTTP, "\x05": policy.ProxySOCKS5} {
		ctx, cancel := context.WithCancel(t.Context())
		c := answers(t, text)
		done := make(chan error, 1)
		go func() { done <- Connect(ctx, c, scheme, "server.test:443", nil) }()
		cancel()
		if err := <-done; err == nil {
			t.Errorf("%q: it counts as success", text)
		}
	}
}

// FuzzReadAnswer: whatever a proxy answers, only the head is read, and only a 2xx status counts as success.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.0 407 No\r\nA: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bytes.NewReader(text)
		err := readAnswer(r)
		read := text[:len(text)-r.Len()]
		if len(read) > maxHead || bytes.Contains(read[:max(len(read)-1, 0)], []byte("\r\n\r\n")) {
			t.Errorf("%d bytes were read", len(read))
		}
		var refused *Refused
		if err == nil && (!bytes.HasPrefix(read, []byte("HTTP/1.")) || !bytes.Contains(read, []byte(" 2"))) || errors.As(err, &refused) && refused.Status/100 == 2 {
			t.Errorf("%q: %v", read, err)
		}
	})
}
