package exchange_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"

	"boxgate/proxy/proxytest"
)

// Tests of scrubbing what goes on: streams of events, messages, frames.

// TestScrubbedStreamsAreNotDelayed sends events one by one, each after the one before was seen.
func TestScrubbedStreamsAreNotDelayed(t *testing.T) {
	t.Parallel()
	seen := make(map[string]chan struct{})
	for _, v := range []string{"", "gzip", "br", "zstd"} {
		for _, p := range []string{"h1 to h1", "h2 to h2", "h2 to h1"} {
			seen[v+p] = make(chan struct{})
		}
	}
	eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
		coding := r.URL.Query().Get("coding")
		w.Header().Set("Content-Type", "text/event-stream")
		if coding != "" {
			w.Header().Set("Content-Encoding", coding)
		}
		controller := http.NewResponseController(w)
		_ = controller.Flush()
		out, flush := packed(w, coding)
		for i := range 5 {
			select {
			case <-seen[coding+r.URL.Query().Get("name")]:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(out, "data: %d %s\n\n", i, proxytest.ScrubbedToken)
			_ = flush()
			_ = controller.Flush()
		}
		_ = out.Close()
	}, func(t *testing.T, _ *proxytest.Rig, client *http.Client, at string) {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		name = strings.ReplaceAll(name, "_", " ")
		for _, coding := range []string{"", "gzip", "br", "zstd"} {
			res, err := client.Get(at + "/?" + url.Values{"coding": {coding}, "name": {name}}.Encode())
			if err != nil {
				t.Fatal(err)
			}
			seen[coding+name] <- struct{}{} // the head is here
			plain, err := unpacked(res.Body, coding)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(plain)
			for i := range 5 {
				line, err := lines.ReadString('\n')
				if err != nil || line != fmt.Sprintf("data: %d %s\n", i, proxytest.ScrubStars) {
					t.Fatalf("%s: %q, %v", coding, line, err)
				}
				_, _ = lines.ReadString('\n')
				if i < 4 {
					seen[coding+name] <- struct{}{}
				}
			}
			_ = res.Body.Close()
		}
	})
}

// TestCompressedMessagesAreBrokenOff: the flag of a message says so although nothing was negotiated.
func TestCompressedMessagesAreBrokenOff(t *testing.T) {
	t.Parallel()
	eachScrubbed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = w.Write([]byte("\x01\x00\x00\x00\x03abc"))
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
		res, err := client.Get(at)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if err == nil {
			t.Error("it is handed on as a good response")
		}
	})
}

// TestReflectedSecretsInWebSockets: frames of the server, over both versions; none is offered compression.
func TestReflectedSecretsInWebSockets(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var offered atomic.Bool
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		offered.Store(offered.Load() || r.Header["Sec-Websocket-Extensions"] != nil)
		proxytest.EchoWebSocket(w, r)
	})
	l.Scrub(port)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{
		HTTPClient: l.HTTPClient(port, false), CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for _, size := range []int{1, 125, 70000, 1 << 20} {
		msg := strings.Repeat("s", size)
		if err := c.Write(ctx, websocket.MessageBinary, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != "Bearer "+proxytest.ScrubStars+" "+msg {
			t.Fatalf("%d bytes: %.100q %v", size, got, err)
		}
	}
	//lint:ignore SA1019 net/http's own client refuses the field :protocol
	client, err := (&http2.Transport{}).NewClientConn(l.DialPair(proxytest.API, port, true, "h2"))
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	req, _ := http.NewRequestWithContext(ctx, "CONNECT", "https://"+proxytest.HostPort(port)+"/", pr)
	req.Header[":protocol"] = []string{"websocket"}
	req.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
	res, err := client.RoundTrip(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(err, res)
	}
	if _, err := pw.Write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil {
		t.Fatal(err)
	}
	want := "\x81\x1eBearer " + proxytest.ScrubStars + " hi"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
		t.Errorf("%q %v", got, err)
	}
	if offered.Load() {
		t.Error("an extension was offered")
	}
}

// TestWebSocketExtensionsAreRefused: a server that compresses unasked is not let through.
func TestWebSocketExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}
	})
	l.Scrub(port)
	c := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", "GET")
	if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, "unscrubbable") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}
