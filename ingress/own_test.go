package ingress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy/name"
)

// serveOwn makes a target that a handler of the gateway serves.
func (f *fixture) serveOwn(host string, h http.HandlerFunc) Target {
	t := Target{ID: "own " + host, Box: "box1", Handler: h, Auth: Auth{Open: true}}
	f.set(host+domain, t)
	return t
}

// TestOwnHandler: a handler of the gateway gets requests over each version of HTTP, with the visitor's address and without the fields
// with which a visitor could claim another one. No box is woken or dialled.
func TestOwnHandler(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Dial = func(context.Context, Target) (net.Conn, error) { return nil, errors.New("a box was dialled") }
	})
	f.serveOwn("own", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s %s %s|%s|%s", r.Method, r.Host, r.RequestURI, r.RemoteAddr, body, r.Header.Get("Authorization"), r.Header.Get("X-Forwarded-For")+r.Header.Get("Forwarded"))
	})
	for _, h2 := range []bool{false, true} {
		req, err := http.NewRequest(http.MethodPost, "https://own"+domain+"/a?b=c", strings.NewReader("text"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Basic dXNlcjo=")
		req.Header.Set("X-Forwarded-For", "192.0.2.9")
		req.Header.Set("Forwarded", "for=192.0.2.9")
		resp, err := f.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := "POST own" + domain + " /a?b=c 127.0.0.1:0 text|Basic dXNlcjo=|"; string(body) != want || resp.ProtoMajor != map[bool]int{false: 1, true: 2}[h2] {
			t.Errorf("HTTP/2 %v: %s %q", h2, resp.Proto, body)
		}
	}
	if f.woken.Load() != 0 {
		t.Error("a box was woken")
	}
	f.event(t, func(e audit.Event) bool {
		return e.Name == "own"+domain && e.Box == "box1" && e.Reason == name.ReasonURL && e.Status == 200 && e.Action == audit.ActionAnswer // coalesced
	})
	f.set("made-up"+domain, Target{ID: "own", Box: "box2", Unknown: true, Handler: http.NotFoundHandler(), Auth: Auth{Open: true}})
	if res, _ := get(t, f.client(t, false), "https://made-up"+domain+"/", nil); res.StatusCode != http.StatusNotFound {
		t.Error(res.Status)
	}
	f.event(t, func(e audit.Event) bool { return e.Name == "made-up"+domain && e.Box == "" })
	f.plain = f.listen(t, func(ln net.Listener) error { return f.ServeRedirect(ln, 443, nil) })
	f.raw(t, "GET / HTTP/1.1\r\nHost: made-up"+domain+"\r\n\r\n")
	f.event(t, func(e audit.Event) bool { return e.Status == http.StatusPermanentRedirect && e.Box == "" })
}

// TestOwnHandlerStreams: bytes pass as they come in both directions at the same time.
func TestOwnHandlerStreams(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.serveOwn("own", func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		_ = control.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, "echo", lines.Text())
			_ = control.Flush()
		}
	})
	for _, h2 := range []bool{false, true} {
		in, out := io.Pipe()
		req, err := http.NewRequest(http.MethodPost, "https://own"+domain, in)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := f.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			fmt.Fprintln(out, i)
			if got, err := lines.ReadString('\n'); got != fmt.Sprintln("echo", i) || err != nil {
				t.Fatalf("HTTP/2 %v: %q %v", h2, got, err)
			}
		}
		out.Close()
		if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
			t.Errorf("HTTP/2 %v: %q %v", h2, rest, err)
		}
		resp.Body.Close()
	}
}

// TestOwnHandlerIsCut: a revocation, a visitor who leaves and a stop end the handler's context.
func TestOwnHandlerIsCut(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	began, ended := make(chan struct{}), make(chan struct{})
	target := f.serveOwn("own", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	stop := func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = f.Shutdown(ctx)
	}
	for _, h2 := range []bool{false, true} {
		leave := func() {}
		for event, end := range map[string]func(){
			"URL": func() { f.CloseURL(target.ID) }, "box": func() { f.CloseBox(target.Box) }, "visitor": func() { leave() },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			leave = cancel
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://own"+domain, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := f.client(t, h2).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			<-began
			go end()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatalf("HTTP/2 %v: the handler goes on after the end of its %s", h2, event)
			}
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("HTTP/2 %v, %s: the response looks complete", h2, event)
			}
			resp.Body.Close()
			cancel()
		}
	}
	resp, err := f.client(t, true).Get("https://own" + domain)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-began
	go stop()
	<-ended
}

// TestOwnHandlerIsBounded: requests that the gateway serves itself take a sixth of the places, and one network a quarter of these; they
// are released. Other URLs keep their places.
func TestOwnHandlerIsBounded(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.Requests = 48 })
	release := make(chan struct{})
	f.serveOwn("own", func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-release
	})
	server := record(t)
	f.expose("app", server.Server, Auth{Open: true})
	c := f.client(t, true)
	var open []*http.Response
	for range 2 {
		resp, err := c.Get("https://own" + domain)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	third, err := c.Get("https://own" + domain)
	if err != nil {
		t.Fatal(err)
	}
	if third.Body.Close(); third.StatusCode != http.StatusTooManyRequests { // without reading: it may not end
		t.Errorf("a third one is answered %s", third.Status)
	}
	if resp, _ := get(t, c, "https://app"+domain, nil); resp.StatusCode != http.StatusOK {
		t.Errorf("another URL is answered %s", resp.Status)
	}
	close(release)
	for _, resp := range open {
		_, _ = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	f.event(t, func(e audit.Event) bool { return e.Name == "own"+domain && e.Status == 200 })
	for range 2 {
		resp, err := c.Get("https://own" + domain)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
			t.Error(resp.Status)
		}
	}
	f.own.mu.Lock()
	defer f.own.mu.Unlock()
	if f.own.taken > 2 || f.own.taken < 0 {
		t.Errorf("%d places are taken", f.own.taken)
	}
}

// TestOwnHandlerPanics: a panic ends its request only.
func TestOwnHandlerPanics(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.serveOwn("own", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("secret")
		}
		_, _ = io.WriteString(w, "fine")
	})
	c := f.client(t, true)
	if resp, body := get(t, c, "https://own"+domain+"/panic", nil); resp.StatusCode != http.StatusBadGateway || strings.Contains(body, "secret") {
		t.Errorf("%s %s", resp.Status, body)
	}
	if _, body := get(t, c, "https://own"+domain, nil); body != "fine" {
		t.Error(body)
	}
}

// TestBoxesReachNoOwnHandler: the connections of boxes do not reach the gateway's own handlers.
func TestBoxesReachNoOwnHandler(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.serveOwn("own", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "reached") })
	get(t, f.client(t, false), "https://"+f.url("own")+"/", nil) // after this, the listener is ready
	conn, err := f.visitFrom(t, "10.200.0.7:40000", f.url("own"), f.url("own"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: own%s\r\n\r\n", domain)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Error(resp.Status)
	}
}

// TestOwnHandlerOfASlowVisitor: a visitor who stops sending is answered 408, and the handler's reading ends.
func TestOwnHandlerOfASlowVisitor(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.BodyTimeout = 300 * time.Millisecond })
	read := make(chan error, 1)
	f.serveOwn("own", func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
	})
	for _, h2 := range []bool{false, true} {
		in, out := io.Pipe()
		req, err := http.NewRequest(http.MethodPost, "https://own"+domain, in)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = out.Write([]byte("beginning")) }()
		resp, err := f.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		out.Close()
		if err := <-read; err == nil || resp.StatusCode != http.StatusRequestTimeout {
			t.Errorf("HTTP/2 %v: %s, and the handler reads %v", h2, resp.Status, err)
		}
	}
}
