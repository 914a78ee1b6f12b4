package fidelity

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"

	"boxgate/config"
	"boxgate/e2e/harness"
)

// Opcodes of RFC 6455, 5.2.
const (
	wsText   = 1
	wsBinary = 2
	wsClose  = 8
	wsPing   = 9
	wsPong   = 10
)

// wsFrame returns a client's frame, masked (RFC 6455, 5.3).
func wsFrame(op byte, payload []byte) []byte {
	frame := []byte{0x80 | op}
	switch n := len(payload); {
	case n < 126:
		frame = append(frame, 0x80|byte(n))
	case n < 1<<16:
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(n))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 0x80|127), uint64(n))
	}
	mask := [4]byte{1, 2, 3, 4}
	frame = append(frame, mask[:]...)
	for i, b := range payload {
		frame = append(frame, b^mask[i%4])
	}
	return frame
}

// wsRead reads a server's message in any number of frames, or a control frame.
func wsRead(r io.Reader) (op byte, payload []byte, err error) {
	for {
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return 0, nil, err
		}
		size := uint64(head[1] & 0x7f)
		switch size {
		case 126:
			var n uint16
			err, size = binary.Read(r, binary.BigEndian, &n), uint64(n)
		case 127:
			err = binary.Read(r, binary.BigEndian, &size)
		}
		if err != nil {
			return 0, nil, err
		}
		part := make([]byte, size)
		if _, err := io.ReadFull(r, part); err != nil {
			return 0, nil, err
		}
		payload = append(payload, part...)
		if o := head[0] & 0xf; o != 0 {
			op = o
		}
		if head[0]&0x80 != 0 {
			return op, payload, nil
		}
	}
}

// wsClient is one WebSocket of a client.
type wsClient struct {
	io.Reader
	io.Writer
	end func()
}

func (c wsClient) ask(op byte, payload []byte) (byte, []byte, error) {
	sent := make(chan error, 1)
	go func() { // a server that echoes may stop reading until its output is read
		_, err := c.Write(wsFrame(op, payload))
		sent <- err
	}()
	gotOp, got, err := wsRead(c)
	return gotOp, got, errors.Join(err, <-sent)
}

// webSocket opens a WebSocket over HTTP/1.1, or over HTTP/2 (RFC 8441).
func (f *fidelity) webSocket(r route, path string) wsClient {
	f.T.Helper()
	if !r.h2 {
		c := f.dialTLS(r.host(), "http/1.1")
		_ = c.SetDeadline(time.Now().Add(60 * time.Second))
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nOrigin: https://a.example\r\n%s", path, r.host(), harness.UpgradeHead)
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != 101 || res.Header.Get("Sec-WebSocket-Accept") != "BACScCJPNqyz+UBoqMH89VmURoA=" {
			f.T.Fatalf("%v %v", res, err)
		}
		return wsClient{in, c, func() { c.Close() }}
	}
	//lint:ignore SA1019 net/http has no extended CONNECT
	conn, err := new(http2.Transport).NewClientConn(f.dialTLS(r.host(), "h2"))
	if err != nil {
		f.T.Fatal(err)
	}
	if err := conn.Ping(f.T.Context()); err != nil { // its SETTINGS are here
		f.T.Fatal(err)
	}
	in, out := io.Pipe()
	req, _ := http.NewRequest("CONNECT", r.url+path, in)
	req.Header[":protocol"] = []string{"websocket"}
	req.Header.Set("Sec-WebSocket-Version", "13")
	res, err := conn.RoundTrip(req)
	if err != nil || res.StatusCode != 200 {
		f.T.Fatalf("%v %v", res, err)
	}
	return wsClient{res.Body, out, func() { out.Close(); conn.Close() }}
}

// echoPage echoes every message and records how the client closed.
func (f *fidelity) echoPage() (closed <-chan string) {
	ends := make(chan string, 10)
	f.page("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer func() { _ = c.CloseNow() }()
		c.SetReadLimit(4 << 20)
		for {
			kind, data, err := c.Read(r.Context())
			if err == nil {
				err = c.Write(r.Context(), kind, data)
			}
			var end websocket.CloseError
			switch {
			case errors.As(err, &end):
				ends <- fmt.Sprintf("%d %s", end.Code, end.Reason)
				return
			case err != nil:
				ends <- "broken"
				return
			}
		}
	})
	f.page("/bye", func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}); err == nil {
			_ = c.Close(4002, "from the server")
		}
	})
	return ends
}

// TestFidelityWebSocket: messages, pings and close codes pass over HTTP/1.1 and HTTP/2.
func TestFidelityWebSocket(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	closed := f.echoPage()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, r := range []route{overHTTP1, overHTTP2} {
		t.Run(r.name, func(t *testing.T) {
			f := f.on(t)
			c := f.webSocket(r, "/ws")
			defer c.end()
			for name, m := range map[string]struct {
				op, back byte
				data     []byte
			}{
				"text": {wsText, wsText, []byte("grüße")}, "empty": {wsText, wsText, nil}, "binary": {wsBinary, wsBinary, []byte{0, 0xff, 0xc3}},
				"ping": {wsPing, wsPong, []byte("are you there")}, "1 MiB": {wsBinary, wsBinary, big},
			} {
				op, got, err := c.ask(m.op, m.data)
				if err != nil || op != m.back || !bytes.Equal(got, m.data) {
					t.Errorf("%s: opcode %d, %d bytes, %v", name, op, len(got), err)
				}
			}
			code := append([]byte{0x0f, 0xa1}, "by choice"...) // 4001
			if op, got, err := c.ask(wsClose, code); err != nil || op != wsClose || !bytes.HasPrefix(got, code[:2]) {
				t.Errorf("close: opcode %d %q %v", op, got, err)
			}
			if got := <-closed; got != "4001 by choice" {
				t.Errorf("the server heard %q", got)
			}
			bye := f.webSocket(r, "/bye")
			defer bye.end()
			if op, got, err := wsRead(bye); err != nil || op != wsClose || string(got) != "\x0f\xa2from the server" {
				t.Errorf("close from the server: opcode %d %q %v", op, got, err)
			}
			gone := f.webSocket(r, "/ws")
			_, _, _ = gone.ask(wsText, []byte("x"))
			gone.end()
			if got := <-closed; got != "broken" {
				t.Errorf("a client that breaks off: the server heard %q", got)
			}
		})
	}
	// Programs in the box: Python over HTTP/1.1, Node over HTTP/2.
	hex := fmt.Sprintf("%x", append(wsFrame(wsText, []byte("hello")), wsFrame(wsClose, []byte{0x0f, 0xa1})...))
	want := "8105" + fmt.Sprintf("%x", "hello") + "88020fa1"
	out := f.run("python3 -c '" + `
import socket, ssl
s = ssl.create_default_context().wrap_socket(socket.create_connection(("` + bothHost + `", 443)), server_hostname="` + bothHost + `")
s.sendall("GET /ws HTTP/1.1\r\nHost: ` + bothHost + `\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode())
data = b""
while not data.endswith(b"\r\n\r\n"): data += s.recv(1)
s.sendall(bytes.fromhex("` + hex + `"))
data = b""
while len(data) < 11: data += s.recv(64)
print(data.hex())'`)
	if strings.TrimSpace(out) != want {
		t.Errorf("Python: %s", out)
	}
	out = f.run("node -e '" + `
const s = require("http2").connect("https://` + bothHost + `");
s.on("remoteSettings", () => {
  const r = s.request({":method": "CONNECT", ":protocol": "websocket", ":path": "/ws", "sec-websocket-version": "13", "origin": "https://a.example"});
  let got = ""; r.on("response", () => r.write(Buffer.from("` + hex + `", "hex")));
  r.on("data", d => { got += d.toString("hex"); if (got.length >= 22) { console.log(got); r.close(); s.close() } });
});'`)
	if strings.TrimSpace(out) != want {
		t.Errorf("Node: %s", out)
	}
}

// TestFidelityIdle leaves streams and WebSockets idle for longer than every timer except the tunnel timeout, and then
// for longer than that.
func TestFidelityIdle(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, func(c *config.Config) { c.Limits.PeekTimeout = 3 * time.Second })
	closed := f.echoPage()
	go func() {
		for range closed {
		}
	}()
	const idle = 6 * time.Second // the gateway checks the client after 5 s, and returns buffers after 1 s
	f.page("/quiet", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begin ")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(idle):
			_, _ = io.WriteString(w, "end")
		case <-r.Context().Done():
		}
	})
	for _, r := range []route{overHTTP1, overHTTP2, overDowngrade} {
		t.Run("stream "+r.name, func(t *testing.T) {
			t.Parallel()
			f := f.on(t)
			if out := f.curl(r, "-N", "/quiet"); out != "begin end" {
				t.Errorf("%q", out)
			}
		})
	}
	for _, r := range []route{overHTTP1, overHTTP2} {
		t.Run("WebSocket "+r.name, func(t *testing.T) {
			t.Parallel()
			f := f.on(t)
			c := f.webSocket(r, "/ws")
			defer c.end()
			ctx, cancel := context.WithTimeout(t.Context(), idle)
			defer cancel()
			<-ctx.Done()
			if _, got, err := c.ask(wsText, []byte("awake")); err != nil || string(got) != "awake" {
				t.Errorf("%q %v", got, err)
			}
		})
	}
}

// TestFidelityIdleLimit configures a limit for idle tunnels: these are reset, but neither a tunnel with traffic nor a
// pending response.
func TestFidelityIdleLimit(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, func(c *config.Config) { c.Proxy.IdleTimeout = 5 * time.Second })
	f.echoPage()
	hold := make(chan struct{})
	f.page("/quiet", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-hold
		_, _ = io.WriteString(w, "late")
	})
	res, err := f.client(overHTTP1).Get(overHTTP1.url + "/quiet")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	busy := f.webSocket(overHTTP1, "/ws")
	defer busy.end()
	quiet := make(chan error, 3)
	for _, r := range []route{overHTTP1, overHTTP2} {
		c := f.webSocket(r, "/ws")
		go func() {
			_, _, err := wsRead(c)
			quiet <- err
		}()
	}
	spliced := harness.TLSUnchecked(f.DialHost(tunnelHost, 443), tunnelHost)
	if err := spliced.Handshake(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := spliced.Read(make([]byte, 1))
		quiet <- err
	}()
	for ended := 0; ended < 3; {
		select {
		case err := <-quiet:
			if ended++; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("an idle tunnel ends as if in good order: %v", err)
			}
		case <-time.After(100 * time.Millisecond):
			if _, got, err := busy.ask(wsText, []byte("busy")); err != nil || string(got) != "busy" {
				t.Fatalf("a busy tunnel: %q %v", got, err)
			}
		case <-t.Context().Done():
			t.Fatal("idle tunnels stay")
		}
	}
	close(hold)
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "late" {
		t.Errorf("%q %v", body, err)
	}
}
