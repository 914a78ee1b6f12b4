package http2_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestSignedWebSocket: a WebSocket is a request without a body, also over HTTP/2 (RFC 8441), where the stream stays open: it is
// signed immediately, and its messages are searched.
func TestSignedWebSocket(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"scrub": false, "placeholders": {"KEY": {"secret": "s"}}, `+proxytest.Everywhere+`, "sign": {"hmac": {
		"key": "k", "header": "Authorization", "template": "{method} {path} {body_sha256}"}}}}`)
	mac := hmac.New(sha256.New, []byte("k"))
	_, _ = io.WriteString(mac, "GET / "+proxytest.HashOf(""))
	signature := hex.EncodeToString(mac.Sum(nil))
	for _, kind := range []string{"", "application/json", "gzip"} {
		//lint:ignore SA1019 net/http's own client refuses the field :protocol
		client, err := (&http2.Transport{}).NewClientConn(l.DialPair(proxytest.API, port, true, "h2"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		pr, pw := io.Pipe()
		defer pw.Close()
		req, _ := http.NewRequestWithContext(ctx, "CONNECT", "https://"+proxytest.HostPort(port)+"/", pr)
		req.Header[":protocol"] = []string{"websocket"}
		switch kind {
		case "gzip":
			req.Header.Set("Content-Encoding", kind)
		case "":
		default:
			req.Header.Set("Content-Type", kind)
		}
		res, err := client.RoundTrip(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%q: %v %v", kind, res, err)
		}
		frame := append([]byte{0x81, 0x80 | byte(len(proxytest.TokenFor("KEY"))), 0, 0, 0, 0}, proxytest.TokenFor("KEY")...)
		if _, err := pw.Write(frame); err != nil {
			t.Fatal(err)
		}
		want := "\x81" + string(rune(len(signature)+12)) + signature + " from-source"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
			t.Errorf("%q: %q %v", kind, got, err)
		}
	}
}
