package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/ingress/balancer"
	"boxgate/internal/socket"
	"boxgate/policy"
)

// kept describes the resources that connections hold at the moment; "" if there are none.
func (f *fixture) kept() string {
	var held []string
	for _, ln := range f.lns {
		if open, _ := f.Held(ln); open > 0 {
			held = append(held, fmt.Sprintf("%d connections of %v", open, ln.Addr()))
		}
	}
	f.Ingress.mu.Lock()
	listeners := f.listeners
	f.Ingress.mu.Unlock()
	for _, l := range listeners {
		if n := len(l.slots); n > 0 && l.ln == nil {
			held = append(held, fmt.Sprintf("%d slots of boxes", n))
		} else if n > 1 { // one belongs to the awaited connection
			held = append(held, fmt.Sprintf("%d slots", n))
		}
		if use := l.places.use(); use.Taken > 0 {
			held = append(held, fmt.Sprintf("%d places", use.Taken))
		}
		l.places.mu.Lock()
		if n := len(l.places.peers) + len(l.places.boxes); n > 0 {
			held = append(held, fmt.Sprintf("%d counts of networks and URLs", n))
		}
		l.places.mu.Unlock()
	}
	for kind, use := range f.Uses() {
		if use.Taken > 0 && kind != "url_idle_upstreams" { // which are kept on purpose
			held = append(held, fmt.Sprintf("%d %s", use.Taken, kind))
		}
	}
	if n := f.active.count(); n > 0 {
		held = append(held, fmt.Sprintf("%d requests", n))
	}
	return strings.Join(held, ", ")
}

// await waits until a condition holds, and reports whether it did within a minute.
func await(t *testing.T, holds func() bool) bool {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(time.Minute); !holds(); <-poll.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// released waits until connections hold no resources.
func (f *fixture) released(t *testing.T, after string) {
	t.Helper()
	if !await(t, func() bool { return f.kept() == "" }) {
		t.Fatalf("after %s, these are held: %s", after, f.kept())
	}
}

// walker is an ingress with one URL for each behaviour of an application, over HTTP and raw TCP.
type walker struct {
	*fixture
	redirects string
}

// quickTimes make every timeout of a visitor's connection expire within the test.
const quickTimes = 100 * time.Millisecond

func newWalker(t *testing.T) *walker {
	t.Helper()
	panics := &sleepers{wake: func(_ context.Context, box policy.BoxID, _ uint16) error {
		if box == "panics" {
			panic("no")
		}
		return nil
	}}
	f := startWith(t, func(c *Config) {
		c.Balancers = balancer.List{netip.MustParsePrefix("127.0.0.2/32")}
		c.Boxes = panics
		c.ReadHeaderTimeout, c.IdleTimeout, c.BodyTimeout, c.ResponseTimeout = quickTimes, quickTimes, quickTimes, quickTimes
	}, func(g *Ingress) { g.halfOpen = quickTimes })
	w := &walker{fixture: f, redirects: f.listen(t, func(ln net.Listener) error { return f.ServeRedirect(ln, 443, nil) })}
	gone := record(t)
	gone.Close()
	apps := map[string]net.Addr{
		"echo":    rawApp(t, sendBack),
		"mute":    rawApp(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, struct{ io.Reader }{c}) }),
		"resets":  rawApp(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)); socket.Reset(c) }),
		"refuses": gone.Listener.Addr(),
		"ends":    rawApp(t, func(*net.TCPConn) {}),
		"breaks": rawApp(t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1000))
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
		}),
	}
	for name, at := range apps {
		f.exposeAt("raw-"+name, at, Auth{Open: true}, TCP)
		f.exposeAt(name, at, Auth{Open: true}, Auto)
	}
	for _, p := range []string{"", "raw-"} {
		target := f.exposeAt(p+"panics", apps["echo"], Auth{Open: true}, map[string]Protocol{"": Auto, "raw-": TCP}[p])
		target.Box = "panics"
		f.set(p+"panics"+domain, target)
		f.exposeAt(p+"locked", apps["echo"], Auth{Bearer: digest(BearerDigest("token"))}, map[string]Protocol{"": Auto, "raw-": TCP}[p])
	}
	box := record(t)
	f.expose("app", box.Server, Auth{Open: true})
	return w
}

// endings are the ways in which a visitor ends.
var endings = map[string]func(c net.Conn){
	"closed":      func(c net.Conn) { _ = c.Close() },
	"reset":       func(c net.Conn) { socket.Reset(c) },
	"half-closed": func(c net.Conn) { socket.CloseWrite(c); _, _ = io.Copy(io.Discard, c); _ = c.Close() },
	"left silent": func(c net.Conn) { // until the gateway has had time to end it; raw TCP may be silent for any time
		_ = c.SetDeadline(time.Now().Add(10 * quickTimes))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	},
}

// secure connects by TLS. A handshake that the gateway ends because it takes too long is another valid ending.
func (w *walker) secure(t *testing.T, host, alpn string) net.Conn {
	t.Helper()
	c := w.dial(t, w.https)
	settings := &tls.Config{RootCAs: w.roots, ServerName: host + domain}
	if alpn != "" {
		settings.NextProtos = []string{alpn}
	}
	if s := tls.Client(c, settings); s.HandshakeContext(t.Context()) == nil {
		return s
	}
	return c
}

// sendHTTP1 sends a request over HTTP/1.1 and part of its body.
func sendHTTP1(c net.Conn, host, body string) net.Conn {
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: "+host+domain+"\r\nContent-Length: 5\r\n\r\n"+body)
	return c
}

// sendHTTP2 is sendHTTP1 over HTTP/2.
func sendHTTP2(c net.Conn, host, body string) net.Conn {
	_, _ = io.WriteString(c, http2.ClientPreface)
	v := http2.NewFramer(c, c)
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	fields := to("POST", host, "/", "content-length", "5")
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = v.WriteSettings()
	_ = v.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true})
	_ = v.WriteData(1, len(body) == 5, []byte(body))
	return c
}

// stages returns the stages at which a visitor's connection can end. Each makes a new connection and brings it there.
func (w *walker) stages(t *testing.T) map[string]func() net.Conn {
	stages := map[string]func() net.Conn{}
	for name, at := range map[string]string{"https": w.https, "http": w.plain, "redirects": w.redirects} {
		for said, text := range map[string]string{"nothing": "", "a byte": "\x16", "garbage": strings.Repeat("garbage\r\n", 100), "half a request": "GET / HTTP/1.1\r\nHost:"} {
			stages[name+" from a visitor who sent "+said] = func() net.Conn { return from(t, "127.0.0.1", at, text) }
			stages[name+" from a balancer that sent "+said] = func() net.Conn { return from(t, "127.0.0.2", at, text) }
			stages[name+" by a balancer, "+said] = func() net.Conn { return from(t, "127.0.0.2", at, proxyHeader("192.0.2.7:4711")+text) }
		}
	}
	for _, url := range []string{"app", "mute", "resets", "refuses", "ends", "breaks", "panics", "locked", "unknown"} {
		for _, body := range []string{"", "he", "hello"} {
			name := fmt.Sprintf("to %s with %d bytes of 5", url, len(body))
			stages["HTTP/1.1 "+name] = func() net.Conn { return sendHTTP1(w.secure(t, url, "http/1.1"), url, body) }
			stages["plain HTTP "+name] = func() net.Conn { return sendHTTP1(w.dial(t, w.plain), url, body) }
			stages["HTTP/2 "+name] = func() net.Conn { return sendHTTP2(w.secure(t, url, "h2"), url, body) }
		}
		stages["HTTP/1.1 to "+url+" after the handshake"] = func() net.Conn { return w.secure(t, url, "http/1.1") }
		stages["HTTP/2 to "+url+" after the handshake"] = func() net.Conn { return w.secure(t, url, "h2") }
		stages["raw TCP to "+url] = func() net.Conn {
			c := w.secure(t, "raw-"+url, "")
			_, _ = io.WriteString(c, "hello")
			return c
		}
	}
	return stages
}

// TestEveryEndingReleases tries every ending of a visitor's connection, on each listener and at each stage. After each, no
// resource is held.
func TestEveryEndingReleases(t *testing.T) {
	t.Parallel()
	w := newWalker(t)
	stages := w.stages(t)
	for how, end := range endings {
		var ending sync.WaitGroup
		for _, bring := range stages { // in parallel, as most of the time is spent waiting
			c := bring()
			ending.Go(func() { end(c) })
		}
		ending.Wait()
		w.released(t, fmt.Sprintf("%d connections at as many stages, %s", len(stages), how))
	}
}

// TestRevocationReleases: connections that end by a revocation or a stop release their resources.
func TestRevocationReleases(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for p, app := range map[Protocol]net.Addr{TCP: rawApp(t, hold), Auto: rawApp(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, struct{ io.Reader }{c}) })} {
		for name, cut := range map[string]func(){
			"url": func() { f.CloseURL("url") }, "box": func() { f.CloseBox("box1") },
		} {
			f.exposeAt(name, app, Auth{Open: true}, p)
			var visitors []net.Conn // keep their connections when one URL is revoked
			if p == TCP {
				f.mustConnect(t, name)
			} else {
				c := f.handshake(t, f.dial(t, f.https), name+domain, "http/1.1")
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+name+domain+"\r\n\r\n")
				v := f.frames(t, name)
				visitors = append(visitors, c, v.Conn)
				v.ask(true, to("GET", name, "/")...)
				if !await(t, func() bool { return f.active.count() == 2 }) {
					t.Fatal("the requests have not begun")
				}
			}
			f.remove(name + domain)
			cut()
			for _, c := range visitors {
				_ = c.Close()
			}
			f.released(t, fmt.Sprintf("the revocation of a %s of protocol %d", name, p))
		}
	}
	f.exposeAt("url", rawApp(t, sendBack), Auth{Open: true}, TCP)
	kept, err := f.connectRaw(t, "url")
	if err != nil {
		t.Fatal(err)
	}
	f.Retire() // as if another process accepted from here on
	_ = kept.Close()
	f.released(t, "a hand-over")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	f.released(t, "a stop")
}

// TestVisitorsBeyondTheLimitWait: a listener holds as many connections as it has slots. Others wait until one ends, in
// whatever way, and a stop does not wait for slots.
func TestVisitorsBeyondTheLimitWait(t *testing.T) {
	t.Parallel()
	for how, end := range endings {
		if how == "left silent" {
			continue
		}
		f := start(t, func(c *Config) { c.Connections = 4 })
		box := record(t)
		f.expose("one", box.Server, Auth{Open: true})
		var open []net.Conn
		for i := range 4 {
			c := from(t, fmt.Sprintf("127.0.0.%d", 10+i), f.https, "\x16")
			open = append(open, c)
		}
		answered := make(chan error, 1)
		go func() {
			resp, err := f.client(t, false).Get("https://one" + domain + "/")
			if err == nil {
				err = resp.Body.Close()
			}
			answered <- err
		}()
		f.fills(t, 4)
		select {
		case err := <-answered:
			t.Errorf("%s: a fifth visitor was served beside four: %v", how, err)
		default:
		}
		for _, c := range open {
			end(c)
		}
		select {
		case err := <-answered:
			if err != nil {
				t.Errorf("%s: %v", how, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the fifth visitor is not served after the others have gone", how)
		}
	}
}

// TestStopWaitsForNoSlot: waiting connections are served while there are slots, and a stop does not wait for the others.
func TestStopWaitsForNoSlot(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Connections = 2 })
	for i := range 4 {
		from(t, fmt.Sprintf("127.0.0.%d", 10+i), f.https, "\x16")
	}
	f.fills(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	f.released(t, "a stop")
}

// fills waits until the HTTPS listener holds this number of connections.
func (f *fixture) fills(t *testing.T, n int) {
	t.Helper()
	if !await(t, func() bool { open, _ := f.Held(f.lns[0]); return open == n }) {
		open, _ := f.Held(f.lns[0])
		t.Fatalf("%d connections are open, not %d", open, n)
	}
}
