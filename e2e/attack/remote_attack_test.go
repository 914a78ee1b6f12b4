package attack

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// authOf returns the credentials of a box as a field of a request.
func authOf(id, token string) string {
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(id+":"+token)) + "\r\n"
}

// connectTo returns the head of a CONNECT.
func connectTo(b remoteBox, to string) string {
	return "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n" + authOf(b.id, b.token) + "\r\n"
}

// tunnel opens a tunnel to a destination.
func (w *remoteWorld) tunnel(b remoteBox, to string) net.Conn {
	w.T.Helper()
	c := w.dial()
	_, _ = io.WriteString(c, connectTo(b, to))
	got, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect})
	if err != nil || got.StatusCode != 200 {
		w.T.Fatalf("CONNECT %s: %v, %v", to, got, err)
	}
	return c
}

// A token opens the listener for its own box alone, until it is replaced or revoked; then its open tunnels are cut. It is in no log,
// no answer of the API, and no request that a server receives.
func TestAttackRemoteToken(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	a := w.attach(map[string]any{"name": "remote-a", "network_policy": harness.Custom("api.example.com")})
	b := w.attach(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	local := w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(local, "token"), nil, nil); err == nil || !strings.Contains(err.Error(), "does not run elsewhere") {
		t.Errorf("a token of a launched box: %v", err)
	}
	for what, wrong := range map[string]remoteBox{
		"the token of another box": {b.id, a.token}, "the name of the box": {"remote-a", a.token}, "a launched box": {local, a.token},
		"an empty token": {a.id, ""}, "an unknown box": {"0123456789abcdef", a.token}, "a part of the token": {a.id, a.token[:len(a.token)-1]},
	} {
		if status, _ := w.ask(connectTo(wrong, "api.example.com:443")); status != 407 {
			t.Errorf("%s: %d", what, status)
		}
		if _, err := w.socks(wrong, "api.example.com:443"); err == nil {
			t.Errorf("%s opens SOCKS5", what)
		}
	}
	head := "GET http://api.example.com/leak HTTP/1.1\r\nHost: api.example.com\r\n" + authOf(a.id, a.token)
	kept := w.dial()
	in := bufio.NewReader(kept)
	for range 2 { // the second request of the connection has the credentials too
		if got, _ := harness.Exchange(t, kept, in, head+"\r\n"); got.StatusCode != 200 {
			t.Errorf("a request: %s", got.Status)
		}
	}
	lag := harness.Lag(t)
	for what, end := range map[string]func(){
		"replaced": func() { a.token = w.rotate(a.id, time.Hour) },
		"revoked": func() {
			if err := w.Client.Do(t.Context(), "DELETE", api.BoxPath(a.id, "token"), nil, nil); err != nil {
				t.Error(err)
			}
		},
	} {
		if what == "revoked" || a.token == "" {
			a.token = w.rotate(a.id, time.Hour)
		}
		old, open, other := a, w.tunnel(a, "api.example.com:443"), w.tunnel(b, "api.example.com:443")
		ended := make(chan time.Time, 1)
		go func() { _, _ = io.Copy(io.Discard, open); ended <- time.Now() }()
		end()
		took := (<-ended).Sub(time.Now()) // negative: it ended before the call did
		if took > 50*time.Millisecond+lag() {
			t.Errorf("%s: the tunnel was cut %v after the call", what, took)
		}
		if status, _ := w.ask(connectTo(old, "api.example.com:443")); status != 407 {
			t.Errorf("%s: the old token: %d", what, status)
		}
		_ = other.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := other.Read(make([]byte, 1)); err == nil || !os.IsTimeout(err) {
			t.Errorf("%s: the tunnel of another box: %v", what, err)
		}
	}
	received := w.Intrude(local).Requests("api.example.com", "/leak")
	if len(received) != 2 {
		t.Errorf("%d requests", len(received))
	}
	for _, r := range received {
		if len(r.Header["Proxy-Authorization"]) != 0 {
			t.Errorf("the server got %v", r.Header)
		}
	}
	shown := w.ReadLog() + w.Run(0, nil, "", "box", "get", a.id) + w.Run(0, nil, "", "audit") + w.Run(0, nil, "", "log", "--box", a.id)
	events, err := json.Marshal(w.Events(a.id))
	if err != nil {
		t.Fatal(err)
	}
	shown += string(events)
	for _, box := range []remoteBox{a, b} {
		for _, secret := range []string{box.token, authOf(box.id, box.token)} {
			if strings.Contains(shown, strings.TrimSpace(secret)) {
				t.Error("a token was shown")
			}
		}
	}
	harness.Contains(t, w.Run(0, nil, "", "box", "get", a.id), api.RemoteNote)
}

// A remote box reaches no protected range and no port of the gateway, whatever its policy and however it spells them; names that are
// none are refused, and logged.
func TestAttackRemoteDestinations(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}})
	for _, to := range []string{
		"127.0.0.1:8600", "127.0.0.1:8443", "[::1]:8600", "[::ffff:127.0.0.1]:8600", "0.0.0.0:8600", "10.200.0.1:3128", "10.200.0.2:443", "10.200.0.1:53", "169.254.169.254:80",
		"[fd42:b0c5::1]:3128", "192.168.1.1:80", "[fe80::1]:80", "db.service.boxgate.internal:5432",
	} {
		if status, body := w.ask(connectTo(b, to)); status < 400 || status == 407 {
			t.Errorf("CONNECT %s: %d %s", to, status, body)
		}
		if c, err := w.socks(b, to); err == nil {
			t.Errorf("SOCKS5 to %s", to)
			c.Close()
		}
		if status, body := w.ask("GET http://" + to + "/ HTTP/1.1\r\nHost: " + to + "\r\n" + authOf(b.id, b.token) + "\r\n"); status < 400 || status == 407 {
			t.Errorf("GET %s: %d %s", to, status, body)
		}
	}
	for _, to := range []string{"localhost:8600", "127.0.0.1.nip.example.com:8600"} { // resolved after the tunnel is open
		c := w.tunnel(b, to)
		got, body := harness.Exchange(t, c, bufio.NewReader(c), "GET /healthz HTTP/1.1\r\nHost: "+to+"\r\n\r\n")
		if got.StatusCode < 400 {
			t.Errorf("%s: %s %s", to, got.Status, body)
		}
	}
	// Bytes that no name has, in the name of a SOCKS5 request.
	for _, host := range []string{"api.example.com\x00.evil", "\x00", "a\r\nX: y", "api.example.com:443 HTTP/1.1\r\n\r\nGET http://api.example.com/x", strings.Repeat("a", 255), strings.Repeat("a.", 127) + "a", "api.example.com/", "user@api.example.com", "%31"} {
		if got := w.rawSOCKS(b, host); !strings.HasPrefix(got, "\x05\x02\x01\x00\x05") || got[5] == 0 {
			t.Errorf("SOCKS5 to %q: %q", host, got)
		}
	}
	w.Event(b.id, func(e audit.Event) bool { return e.Reason == name.ReasonBadRequest })
	w.Event(b.id, func(e audit.Event) bool {
		return e.Reason == name.ReasonProtectedRange || e.Reason == name.ReasonHostPort
	})
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(b.id, "preview"), map[string]any{"port": 80}, nil); err == nil || !strings.Contains(err.Error(), "runs elsewhere") {
		t.Errorf("a public URL: %v", err)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(b.id, "reattach"), map[string]any{"pid": os.Getpid()}, nil); err == nil {
		t.Error("a remote box was attached here")
	}
}

// rawSOCKS asks for a name by SOCKS5, and returns all that is answered.
func (w *remoteWorld) rawSOCKS(b remoteBox, host string) string {
	w.T.Helper()
	c := w.dial()
	var ask bytes.Buffer
	ask.WriteString("\x05\x01\x02\x01")
	for _, text := range []string{b.id, b.token} {
		ask.WriteByte(byte(len(text)))
		ask.WriteString(text)
	}
	ask.WriteString("\x05\x01\x00\x03")
	ask.WriteByte(byte(len(host)))
	ask.WriteString(host + "\x01\xbb")
	_, _ = c.Write(ask.Bytes())
	got := make([]byte, 64)
	n, _ := io.ReadAtLeast(c, got, 14)
	return string(got[:n])
}

// Strangers that open connections and send nothing, a part of a handshake, or wrong tokens keep no box out, and hold no more
// connections than the listener grants them.
func TestAttackRemoteStrangers(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{"network_policy": harness.Custom("api.example.com")})
	open := w.tunnel(b, "api.example.com:443")
	const each = 300
	for range each {
		_ = w.connect(remoteAt)
		_, _ = io.WriteString(w.connect(remoteAt), "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
	}
	var guesses sync.WaitGroup
	for range 40 {
		c := w.dial()
		guesses.Go(func() {
			_, _ = io.WriteString(c, connectTo(remoteBox{b.id, "wrong"}, "api.example.com:443"))
			_, _ = io.Copy(io.Discard, c)
		})
	}
	for range 3 {
		_ = w.tunnel(b, "api.example.com:443").Close()
	}
	guesses.Wait()
	_ = open.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := open.Read(make([]byte, 1)); err == nil || !os.IsTimeout(err) {
		t.Errorf("the open tunnel: %v", err)
	}
	lines, count := 0, 0
	w.Until("the refusals are counted", func() bool {
		lines, count = 0, 0
		for line := range bytes.Lines([]byte(w.ReadLog())) {
			var e audit.Event
			if json.Unmarshal(line, &e) == nil && e.Stage == policy.StageConn && e.Reason == name.ReasonUnknownBox {
				lines, count = lines+1, count+int(max(e.Count, 1))
			}
		}
		return count >= 40
	})
	if lines > 40 {
		t.Errorf("%d refusals in %d lines", count, lines)
	}
}

// A stranger cannot send a request in TLS early data, not even with a session of its own.
func TestAttackRemoteEarlyData(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, nil)
	b := w.attach(map[string]any{"network_policy": harness.Custom("api.example.com")})
	dir := t.TempDir()
	session, request := filepath.Join(dir, "session"), filepath.Join(dir, "request")
	get := "GET http://api.example.com/early HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n" + authOf(b.id, b.token) + "\r\n"
	if err := os.WriteFile(request, []byte(get), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), "openssl", append([]string{"s_client", "-connect", remoteAt, "-tls1_3", "-servername", remoteName}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		if input != "" {
			cmd.Args = append(cmd.Args, "-ign_eof")
		}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := w.Net.Gateway().Start(cmd); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return out.String()
	}
	first := run(strings.Replace(get, "/early", "/late", 1), "-sess_out", session)
	harness.Contains(t, first, "HTTP/1.1 200")
	original, err := os.ReadFile(session)
	if err != nil {
		t.Fatalf("%v: %s", err, harness.Tail(first, 500))
	}
	if err := os.WriteFile(session, withEarlyData(t, original, remoteName), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run("", "-sess_in", session, "-early_data", request); !strings.Contains(out, "Early data was rejected") {
		t.Errorf("%s", harness.Tail(out, 1500))
	}
	w.Event(b.id, func(e audit.Event) bool { return e.Path == "/late" })
	for _, e := range w.Events(b.id) {
		if e.Path == "/early" {
			t.Errorf("served: %s", audit.Line(e))
		}
	}
}

// Remote boxes have the limits of every box: connections, traffic and its quota. They keep them, and their tokens, over a restart.
func TestAttackRemoteLimits(t *testing.T) {
	t.Parallel()
	w := newRemoteWorld(t, func(c *config.Config) { c.Limits.Connections = 5 })
	b := w.attach(map[string]any{"network_policy": harness.Custom("api.example.com"), "limits": map[string]any{"quota": 1 << 20}})
	full := func() {
		t.Helper()
		var held []net.Conn
		for range 5 {
			held = append(held, w.tunnel(b, "api.example.com:443"))
		}
		if status, _ := w.ask(connectTo(b, "api.example.com:443")); status == 200 {
			t.Error("more connections than the limit")
		}
		closeAll(held)
		w.Until("the box may connect again", func() bool {
			status, _ := w.ask(connectTo(b, "api.example.com:443"))
			return status == 200
		})
	}
	full()
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Until("the box connects after the restart", func() bool {
		status, _ := w.ask(connectTo(b, "api.example.com:443"))
		return status == 200
	})
	upload := "POST http://api.example.com/up HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\nContent-Length: 1500000\r\n" + authOf(b.id, b.token) + "\r\n" + strings.Repeat("x", 1500000)
	_, _ = w.ask(upload)
	w.Until("the quota closes the box", func() bool {
		status, body := w.ask(connectTo(b, "api.example.com:443"))
		return status == 403 && strings.Contains(body, "quota")
	})
}
