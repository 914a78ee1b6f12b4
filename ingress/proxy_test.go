package ingress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/policy"

	"github.com/coder/websocket"
)

func TestForwardedHeadersAreReplaced(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	forged := "198.51.100.66"
	edits := map[string]func(*http.Request){
		"plainly": func(r *http.Request) {
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Server",
				"X-Forwarded", "Forwarded", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip"} {
				r.Header.Set(name, forged)
			}
		},
		"with underscores": func(r *http.Request) {
			r.Header["X_Forwarded_For"] = []string{forged}
			r.Header["x_real_ip"] = []string{forged}
		},
		"named by Connection": func(r *http.Request) {
			r.Header.Set("Connection", "X-Forwarded-For, X-Forwarded-Proto, X-Real-Ip, Forwarded")
			r.Header.Set("X-Forwarded-For", forged)
		},
	}
	for name, edit := range edits {
		t.Run(name, func(t *testing.T) {
			resp, _ := get(t, f.client(t, false), "https://one"+domain+"/", edit)
			if resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			got := box.last(t)
			if strings.Contains(dump(got), forged) {
				t.Errorf("the client's claim reached the box:\n%s", dump(got))
			}
			want := map[string]string{
				"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "one" + domain,
				"Forwarded": `for=127.0.0.1;host="one.preview.test";proto=https`,
			}
			for name, value := range want {
				if values := got.Header.Values(name); len(values) != 1 || values[0] != value {
					t.Errorf("%s: %q, want %q", name, values, value)
				}
			}
			if got.Host != "one"+domain {
				t.Errorf("Host: %q", got.Host)
			}
		})
	}
}

// What the client typed arrives as it was typed: path escapes, odd queries, repeated slashes.
func TestTargetIsNotTouched(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, target := range []string{"/", "/a%2Fb/..;/c", "//double", "/q?a=1;b=2&%zz&token=x", "/%E4%B8%96?"} {
		resp := f.raw(t, "GET "+target+" HTTP/1.1\r\nHost: one.preview.test\r\n\r\n")
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", target, resp.Status)
		}
		if got := box.last(t).RequestURI; got != target {
			t.Errorf("sent %q, arrived %q", target, got)
		}
	}
	e := f.event(t, func(e audit.Event) bool { return strings.HasPrefix(e.Path, "/q") })
	if e.Path != "/q" || e.Verdict != policy.Allow || e.Reason != policy.ReasonURL || e.Status != 200 || e.Action != audit.ActionForward || e.BytesOut == 0 {
		t.Errorf("event: %+v", e)
	}
}

func TestCookiesStayOnTheirHost(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; Domain=preview.test; Path=/; Secure")
		w.Header().Add("Set-Cookie", "b=2; domain =.preview.test")
		w.Header().Add("Set-Cookie", "__Host-boxgate-session=stolen; Path=/")
		w.Header().Set("Alt-Svc", `h3="attacker.example:443"`)
	}))
	t.Cleanup(server.Close)
	f.expose("one", server, Auth{Open: true})
	resp, _ := get(t, f.client(t, false), "https://one"+domain+"/", nil)
	want := []string{"a=1; Path=/; Secure", "b=2"}
	if got := resp.Header["Set-Cookie"]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("cookies %q, want %q", got, want)
	}
	if resp.Header.Get("Alt-Svc") != "" {
		t.Error("Alt-Svc passed")
	}
}

// Bytes pass as they come, in both directions, over both protocols.
func TestStreams(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: ready\n\n")
		_ = rc.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "data: %s\n\n", lines.Text())
			_ = rc.Flush()
		}
	}))
	t.Cleanup(server.Close)
	f.expose("one", server, Auth{Bearer: digest(BearerDigest("t"))})
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			pr, pw := io.Pipe()
			req, _ := http.NewRequest(http.MethodPost, "https://one"+domain+"/", pr)
			req.Header.Set("Authorization", "Bearer t")
			resp, err := f.client(t, h2).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if h2 != (resp.ProtoMajor == 2) {
				t.Fatalf("protocol %s", resp.Proto)
			}
			lines := bufio.NewReader(resp.Body)
			expect := func(want string) {
				t.Helper()
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					if line = strings.TrimSpace(line); line == want {
						return
					} else if line != "" {
						t.Fatalf("got %q, want %q", line, want)
					}
				}
			}
			expect("data: ready")
			for _, word := range []string{"one", "two", "three"} {
				if _, err := io.WriteString(pw, word+"\n"); err != nil {
					t.Fatal(err)
				}
				expect("data: " + word)
			}
			pw.Close()
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func echoServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(dump(r), "tok") {
			t.Error("the credential reached the box")
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func dialWebSocket(t *testing.T, f *fixture, host, token string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	c, resp, err := websocket.Dial(ctx, "wss://"+host+domain+"/ws?token=tok", &websocket.DialOptions{HTTPClient: f.client(t, false), HTTPHeader: header})
	if err == nil {
		t.Cleanup(func() { _ = c.CloseNow() })
	}
	return c, resp, err
}

func echo(ctx context.Context, c *websocket.Conn, text string) error {
	if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		return err
	}
	_, got, err := c.Read(ctx)
	if err == nil && string(got) != text {
		err = fmt.Errorf("echo %q of %q", got, text)
	}
	return err
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.expose("ws", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	if _, resp, err := dialWebSocket(t, f, "ws", ""); err == nil || resp.StatusCode != 401 {
		t.Fatal("a WebSocket opened with its credential in the query")
	}
	if f.woken.Load() != 0 {
		t.Fatal("the box was woken without a credential")
	}
	c, _, err := dialWebSocket(t, f, "ws", "tok")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"hello", strings.Repeat("x", 20_000)} {
		if err := echo(t.Context(), c, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	e := f.event(t, func(e audit.Event) bool { return e.Status == 101 })
	if e.Verdict != policy.Allow || e.BytesIn < 20_000 || e.BytesOut < 20_000 || e.Path != "/ws" {
		t.Errorf("event: %+v", e)
	}
}

// An upgrade to anything but WebSocket would make a tunnel that nobody judges.
func TestOtherUpgradesAreNotPassedOn(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	if got := dump(box.last(t)); strings.Contains(got, "h2c") || strings.Contains(got, "Settings") {
		t.Errorf("the upgrade reached the box:\n%s", got)
	}
}

// A revoked URL, or one whose credential changed, takes its open sockets along; others stay.
func TestRevocationCutsOpenSockets(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	auth := Auth{Bearer: digest(BearerDigest("tok"))}
	server := echoServer(t)
	gone := f.expose("gone", server, auth)
	f.expose("stays", server, auth)
	c, _, err := dialWebSocket(t, f, "gone", "tok")
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := dialWebSocket(t, f, "stays", "tok")
	if err != nil {
		t.Fatal(err)
	}
	f.remove("gone" + domain)
	f.CloseURL(gone.ID)
	began := time.Now()
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Fatal("the socket still delivers")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("cut only after %v", took)
	}
	if err := echo(t.Context(), other, "still here"); err != nil {
		t.Errorf("another URL's socket was disturbed: %v", err)
	}
	if _, resp, err := dialWebSocket(t, f, "gone", "tok"); err == nil || resp.StatusCode != 404 {
		t.Error("the revoked URL still opens")
	}
	f.CloseBox("box1")
	if _, _, err := other.Read(t.Context()); err == nil {
		t.Error("the socket outlived its box")
	}
}

// A client that does not read cannot keep its request alive through a revocation.
func TestRevocationCutsStalledDownload(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chunk := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	target := f.expose("big", server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		req, _ := http.NewRequest(http.MethodGet, "https://big"+domain+"/", nil)
		resp, err := f.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		cut := make(chan struct{})
		go func() { f.CloseURL(target.ID); close(cut) }()
		select {
		case <-cut:
		case <-time.After(10 * time.Second):
			t.Fatal("CloseURL hangs on a client that does not read")
		}
		if _, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Error("the download ended as if it were whole")
		}
		resp.Body.Close()
	}
}

// The box is asked for again after registration: a request that passed the check just before the URL went is refused.
func TestRevocationBetweenCheckAndStart(t *testing.T) {
	t.Parallel()
	box := record(t)
	urls := &onceURLs{}
	g, err := New(Config{URLs: urls})
	if err != nil {
		t.Fatal(err)
	}
	urls.target = Target{ID: "u", Auth: Auth{Open: true}}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host = "u" + domain
	g.ServeHTTP(w, r)
	if w.Code != 401 || box.count() != 0 {
		t.Errorf("status %d", w.Code)
	}
}

// onceURLs finds its target once.
type onceURLs struct {
	target Target
	asked  int
}

func (u *onceURLs) Lookup(string) (Target, bool) {
	u.asked++
	return u.target, u.asked == 1
}

func TestWakeFails(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Wake = func(context.Context, policy.BoxID) error { return errors.New("no memory") }
	})
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp, body := get(t, f.client(t, false), "https://one"+domain+"/", nil)
	if resp.StatusCode != 502 || strings.Contains(body, "memory") || box.count() != 0 {
		t.Errorf("%s %s", resp.Status, body)
	}
}

func TestPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) {
		c.Wake = func(_ context.Context, box policy.BoxID) error {
			if box == "bad" {
				panic("secret detail")
			}
			return nil
		}
	})
	box := record(t)
	good := f.expose("good", box.Server, Auth{Open: true})
	good.Box = "bad"
	f.set("bad"+domain, good)
	if resp, err := f.client(t, false).Get("https://bad" + domain + "/"); err == nil {
		resp.Body.Close()
		t.Error("an answer came out of a panic")
	}
	if resp, _ := get(t, f.client(t, false), "https://good"+domain+"/", nil); resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
	if e := f.event(t, reason(policy.ReasonInternal)); e.Verdict != policy.Deny {
		t.Errorf("event: %+v", e)
	}
}

func TestRedirect(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	f.plain = f.listen(t, func(ln net.Listener) error {
		return f.ServeRedirect(ln, 8443, func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/.well-known/acme-challenge/x" {
				return false
			}
			w.WriteHeader(http.StatusTeapot)
			return true
		})
	})
	tests := []struct {
		request, location string
		status            int
	}{
		{"GET /a?b=c HTTP/1.1\r\nHost: one.preview.test:80\r\n\r\n", "https://one.preview.test:8443/a?b=c", 308},
		{"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "", 404},
		{"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "", 421},
		{"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: one.preview.test\r\n\r\n", "", 418},
	}
	for _, tt := range tests {
		resp := f.raw(t, tt.request)
		if resp.StatusCode != tt.status || resp.Header.Get("Location") != tt.location {
			t.Errorf("%q: %s to %q", tt.request, resp.Status, resp.Header.Get("Location"))
		}
	}
	if box.count() != 0 {
		t.Error("plain HTTP reached the box")
	}
}

func TestPlainOnlyOnLoopback(t *testing.T) {
	t.Parallel()
	g, err := New(Config{URLs: &onceURLs{}})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := listenAny()
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := g.ServePlain(ln); err == nil {
		t.Error("plain HTTP was served beyond loopback")
	}
}

func TestHeadersTooLarge(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxHeaderBytes = 8 << 10 })
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	resp := f.raw(t, "GET / HTTP/1.1\r\nHost: one.preview.test\r\nX: "+strings.Repeat("a", 32<<10)+"\r\n\r\n")
	if resp.StatusCode != 431 || box.count() != 0 {
		t.Error(resp.Status)
	}
}

// Shutdown waits for requests, and cuts a WebSocket when its time is up.
func TestShutdownCutsWebSockets(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.expose("ws", echoServer(t), Auth{Bearer: digest(BearerDigest("tok"))})
	c, _, err := dialWebSocket(t, f, "ws", "tok")
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), c, "up"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if _, _, err := c.Read(t.Context()); err == nil {
		t.Error("the socket outlived the shutdown")
	}
}

// curl is what people type; it must work over HTTP/2 and HTTP/1.1 with the certificate verified.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("this test needs curl: apt-get install curl")
	}
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Bearer: digest(BearerDigest("tok"))})
	bundle := f.bundle(t)
	_, port, _ := strings.Cut(f.https, ":")
	for flag, version := range map[string]string{"--http1.1": "1.1", "--http2": "2"} {
		url := "https://one" + domain + ":" + port + "/"
		args := []string{"-sS", "--max-time", "20", flag, "--cacert", bundle, "--resolve", "one" + domain + ":" + port + ":127.0.0.1",
			"-w", "|%{http_code}|%{http_version}", "-d", "world", url}
		out, err := exec.CommandContext(t.Context(), curl, append(args, "-H", "Authorization: Bearer tok")...).CombinedOutput()
		if want := "hello world|200|" + version; err != nil || string(out) != want {
			t.Errorf("curl %s: %q, want %q (%v)", flag, out, want, err)
		}
		out, err = exec.CommandContext(t.Context(), curl, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "|401|") {
			t.Errorf("curl %s without the token: %q (%v)", flag, out, err)
		}
	}
}
