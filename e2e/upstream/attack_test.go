package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// fails are ways to use a proxy that fail.
var fails = []string{
	"curl -k -sS -f -m 30 -o /dev/null https://www.example.com/",
	"curl -sS -f -m 30 -o /dev/null http://plain.example.com/",
	"curl -sS -f -m 30 -o /dev/null --http1.1 https://api.example.com/",
	"curl -sS -f -m 30 -o /dev/null --http2 https://api.example.com/",
	"curl -k -sS -f -m 30 -o /dev/null -x http://10.200.0.1:3128 https://www.example.com/",
	"curl -k -sS -f -m 30 -o /dev/null https://198.51.100.11/",
}

// TestAttackPastAProxyThatDoesNotServe: with wrong or no credentials, and with a proxy that is down, in a protected
// range, does not prove its name or speaks another protocol, a box reaches no server, and does not learn the proxy's
// address.
func TestAttackPastAProxyThatDoesNotServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := proxies{w}
	p.tinyproxy("proxy.example.net", "198.51.100.95")
	p.microsocks("socks.example.net", "198.51.100.96")
	p.tinyproxy("inside.example.net", "10.0.0.9") // a proxy in a private network of the host
	for _, host := range []string{"odd.example.net", "closed.example.net"} {
		if err := w.Net.AddHost(host, map[string]string{"odd.example.net": "198.51.100.98", "closed.example.net": "198.51.100.99"}[host]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Net.ServeConns("odd.example.net", 8888, greet); err != nil {
		t.Fatal(err)
	}
	for label, c := range map[string]struct{ url, password string }{
		"wrong password":       {"http://proxy.example.net:8888", "wrong-canary-password"},
		"wrong password socks": {"socks5://socks.example.net:1080", "wrong-canary-password"},
		"no password":          {"http://proxy.example.net:8888", ""},
		"no password socks":    {"socks5://socks.example.net:1080", ""},
		"not there":            {"http://closed.example.net:8888", password},
		"not there socks":      {"socks5://closed.example.net:1080", password},
		"no such name":         {"http://nowhere.example.net:8888", password},
		"no proxy":             {"http://odd.example.net:8888", password},
		"no proxy socks":       {"socks5://odd.example.net:8888", password},
		"no TLS":               {"https://odd.example.net:8888", password},
		"bad certificate":      {"https://bad-cert.example.com:443", password},
		"protected":            {"http://inside.example.net:8888", password},
		"protected address":    {"http://10.0.0.9:8888", ""},
		"the gateway":          {"http://10.200.0.1:3128", ""},
		"the host":             {"http://127.0.0.1:8600", ""},
	} {
		if strings.HasSuffix(label, " socks") && label != "wrong password socks" && !nightly.Enabled() {
			continue
		}
		body := map[string]any{"network_policy": by(open(), c.url), "attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "v"}}}
		if c.password != "" {
			body["attach_headers"] = attach(c.url, c.password, map[string]any{"api.example.com": map[string]string{"X-Key": "v"}})
		}
		box := w.Create(body)
		for _, r := range w.ShEach(box, strings.Split(strings.ReplaceAll(strings.Join(fails, "\n"), "-f ", ""), "\n")...) {
			if r.Code == 0 && !strings.Contains(r.Line, "api.example.com") && !strings.Contains(r.Line, "plain.example.com") {
				t.Errorf("%s: %s reached something: %s", label, r.Line, r.Out)
			}
		}
		for _, r := range w.ShEach(box, fails...) {
			if r.Code == 0 || strings.Contains(r.Out, "10.0.0.9") || strings.Contains(r.Out, "proxy.example.net") {
				t.Errorf("%s: %s: %d %s", label, r.Line, r.Code, r.Out)
			}
		}
		if out := w.MustSh(box, "curl -sS -m 30 -w ' %{http_code}' https://api.example.com/"); !strings.HasSuffix(out, " 502") || !strings.Contains(out, "upstream_proxy") ||
			strings.Contains(out, "example.net") || strings.Contains(out, "10.0.0") {
			t.Errorf("%s: the box is told %s", label, out)
		}
		w.Event(box, func(e audit.Event) bool {
			return e.Reason == name.ReasonUpstreamProxy && e.Verdict == policy.Deny && e.Via == c.url
		})
		w.MustDelete(box)
	}
	if seen := direct(w, origins...); len(seen) > 0 {
		t.Errorf("packets went past the proxies: %v", seen)
	}
	if seen := direct(w, "10.0.0.9"); len(seen) > 0 {
		t.Errorf("a protected address was reached: %v", seen)
	}
	if strings.Contains(w.LogText(), "canary-p") || strings.Contains(w.LogText(), "canary-password") {
		t.Error("the log shows a password")
	}
	w.NoInternalErrors()
}

// TestAttackLoginInClearText: the holder of a key for one box, whose proxy speaks TLS, declares that the same proxy
// speaks plain HTTP or SOCKS5. A listener on the path must not get the operator's login, which is for TLS. The box
// reaches no server, and the API reports the reason to the key. A login given by the operator for plain HTTP is used.
func TestAttackLoginInClearText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wire := &connector{w: w, names: map[string]string{"www.example.com": "198.51.100.11"}}
	if err := errors.Join(w.Net.AddHost("secure.example.net", "198.51.100.97"), w.Net.ServeConns("secure.example.net", 8443, wire.serve)); err != nil {
		t.Fatal(err)
	}
	var heard bytes.Buffer
	if err := w.Net.ServeConns("secure.example.net", 1080, func(c net.Conn) {
		defer c.Close()
		_, _ = c.Write([]byte{5, 2}) // requires a user name and a password
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		b, _ := io.ReadAll(c)
		wire.mu.Lock()
		defer wire.mu.Unlock()
		heard.Write(b)
	}); err != nil {
		t.Fatal(err)
	}
	rules := map[string]any{"secure.example.net:8443": login("https", password), "secure.example.net:1080": map[string]any{"proxy": map[string]string{"username": user, "password": password}}}
	box := w.Create(map[string]any{"network_policy": by(open(), "https://secure.example.net:8443"), "attach_headers": rules})
	made := strings.Fields(w.Run(0, nil, "", "api-key", "create", "--name", "one", "--role", "one-box", "--box", box))
	lesser := api.NewClient(w.Socket, made[len(made)-1])
	for _, url := range []string{"http://secure.example.net:8443", "socks5://secure.example.net:1080"} {
		var told json.RawMessage
		if err := lesser.Do(t.Context(), "PUT", "/v2/box/"+box+"/config/network-policy", by(open(), url), &told); err != nil {
			t.Fatal(err)
		}
		if scheme, _, _ := strings.Cut(url, "://"); !strings.Contains(string(told), "spoken to by "+scheme) {
			t.Errorf("%s: no warning: %s", url, told)
		}
		if out, code := w.Sh(box, fails[0]); code == 0 {
			t.Errorf("%s: %s", url, out)
		}
	}
	wire.mu.Lock()
	asked, given := wire.asked, wire.given
	if len(asked) == 0 || len(given) > 0 || bytes.Contains(heard.Bytes(), []byte(password)) {
		t.Errorf("in clear text, of %q: %q %q", asked, given, heard.Bytes())
	}
	wire.mu.Unlock()
	rules["secure.example.net:8443"] = login("http", password)
	if err := w.Client.Do(t.Context(), "PUT", "/v2/box/"+box+"/config/attach-headers", rules, nil); err != nil {
		t.Fatal(err)
	}
	w.SetPolicy(box, by(open(), "http://secure.example.net:8443"))
	w.MustSh(box, fails[0])
	w.NoInternalErrors()
}

// TestAttackProtectedRangesByAProxy: a proxy does not open ranges that no policy can open, whichever side resolves the
// name.
func TestAttackProtectedRangesByAProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := &connector{w: w, names: map[string]string{"www.example.com": "198.51.100.11", "private.example.net": "10.0.0.5", "metadata.example.net": "169.254.169.254"}}
	if err := w.Net.AddHost("proxy.example.net", "198.51.100.95"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeConns("proxy.example.net", 8888, proxy.serve); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.SetRecords("six.example.net", "six.example.net. 60 IN AAAA 64:ff9b::a00:5"); err != nil {
		t.Fatal(err)
	}
	for _, there := range [][]string{nil, {"*"}} {
		box := w.Create(map[string]any{
			"network_policy": by(map[string]any{"mode": "custom", "allowed_domains": []string{"*"}, "allowed_cidrs": []string{"0.0.0.0/0", "::/0"}, "denied_domains": []string{"evil.example.net"}},
				"http://proxy.example.net:8888", there...),
			"attach_headers": attach("http://proxy.example.net:8888", password, map[string]any{"*.example.net": map[string]string{"X-Key": "v"}}),
		})
		w.MustSh(box, "curl -k -sS -f -m 30 -o /dev/null https://www.example.com/")
		if got := proxy.takeRequests(); len(there) > 0 && !has(got, "www.example.com:443") || len(there) == 0 && has(got, "example.com") {
			t.Errorf("resolved there %v: the proxy was asked for %q", there, got)
		}
		for _, r := range w.ShEach(box,
			"curl -k -sS -f -m 30 https://private.example.net/", "curl -sS -f -m 30 http://private.example.net/",
			"curl -k -sS -f -m 30 https://metadata.example.net/", "curl -sS -f -m 30 http://169.254.169.254/latest", "curl -k -sS -f -m 30 https://10.0.0.5/",
			"curl -sS -f -m 30 http://[::ffff:10.0.0.5]/", "curl -k -sS -f -m 30 https://six.example.net/", "curl -k -sS -f -m 30 https://127.0.0.1:8600/",
			"curl -k -sS -f -m 30 -x http://10.200.0.1:3128 https://private.example.net/", "curl -sS -f -m 30 -x http://10.200.0.1:3128 http://10.0.0.5/",
			"curl -sS -f -m 30 -x http://10.200.0.1:3128 http://metadata.example.net/", "curl -k -sS -f -m 30 -x http://10.200.0.1:3128 https://169.254.169.254/",
			"curl -k -sS -f -m 30 --resolve private.example.net:443:198.51.100.11 https://private.example.net/",
			"curl -k -sS -f -m 30 https://evil.example.net/", "curl -sS -f -m 30 -x http://10.200.0.1:3128 http://evil.example.net/",
		) {
			if r.Code == 0 {
				t.Errorf("resolved there %v: %s: %s", there, r.Line, r.Out)
			}
		}
		for _, asked := range proxy.takeRequests() {
			t.Errorf("resolved there %v: the proxy was asked for %s", there, asked)
		}
	}
	for _, host := range []string{"private.example.net", "metadata.example.net", "evil.example.net"} {
		w.NothingReached(host)
	}
	w.NoInternalErrors()
}

// TestProxyChangesOnARunningBox: connections through a proxy are cut before the change is answered, when the box gets
// another proxy, none, or the same with other credentials.
func TestProxyChangesOnARunningBox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxies{w}.tinyproxy("proxy.example.net", "198.51.100.95")
	proxies{w}.microsocks("socks.example.net", "198.51.100.96")
	if err := w.Net.ServeHTTP("git.example.com", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})); err != nil {
		t.Fatal(err)
	}
	rules := attach("http://proxy.example.net:8888", password, map[string]any{
		"git.example.com": map[string]string{"X-Key": "v"}, "socks.example.net:1080": login("socks5", password),
	})
	first, second := "http://proxy.example.net:8888", "socks5://socks.example.net:1080"
	box := w.Create(map[string]any{"network_policy": by(open(), first), "attach_headers": rules})
	for i, change := range []func(){
		func() { w.SetPolicy(box, by(open(), second)) },
		func() { w.SetPolicy(box, open()) },
		func() { w.SetPolicy(box, by(open(), first)) },
		func() {
			rules["proxy.example.net:8888"] = login("http", "another")
			if err := w.Client.Do(t.Context(), "PUT", "/v2/box/"+box+"/config/attach-headers", rules, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		in := w.Intrude(box)
		raw := in.DialHost("raw.example.net", 7000)
		line := make([]byte, 12)
		if _, err := io.ReadFull(raw, line); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		ended := make(chan int, 2)
		for _, version := range []string{"--http1.1", "--http2"} {
			go func() {
				_, code := w.Sh(box, "curl -sS -N "+version+" https://git.example.com/stream")
				ended <- code
			}()
		}
		w.Until("two requests are being answered", func() bool {
			if len(ended) > 0 {
				t.Fatalf("change %d: a request ended before the change, with exit %d", i, <-ended)
			}
			n := 0
			for _, e := range w.Events(box) {
				if e.Path == "/stream" && e.Phase == "open" {
					n++
				}
			}
			return n >= 2*(i+1)
		})
		change()
		if _, err := raw.Read(line); err == nil {
			t.Errorf("change %d: the tunnel goes on", i)
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("change %d: the tunnel is still open", i)
		}
		for range 2 {
			if code := <-ended; code == 0 {
				t.Errorf("change %d: a request ended as if it were complete", i)
			}
		}
	}
	if out, code := w.Sh(box, "curl -sS -f -m 30 https://git.example.com/after"); code == 0 {
		t.Errorf("with another password: %s", out)
	}
	w.NoInternalErrors()
}

// TestE2BProxy: a box created like E2B's SDK does uses its proxy.
func TestE2BProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxies{w}.microsocks("socks.example.net", "198.51.100.96")
	box := w.Create(map[string]any{"network_policy": map[string]any{
		"allowOut": []string{"api.example.com"}, "denyOut": []string{"0.0.0.0/0"},
		"egressProxy": map[string]string{"address": "socks.example.net:1080", "username": user, "password": password},
	}})
	w.MustSh(box, "curl -k -sS -f -m 30 -o /dev/null https://api.example.com/e2b")
	if e := w.Event(box, func(e audit.Event) bool { return e.Name == "api.example.com" && e.Stage == policy.StageConn }); e.Via != "socks5://socks.example.net:1080" {
		t.Errorf("%+v", e)
	}
	if out, code := w.Sh(box, "curl -k -sS -m 30 https://www.example.com/; curl -k -m 30 https://socks.example.net:1080/"); code == 0 {
		t.Errorf("reached: %s", out)
	}
	if seen := direct(w, origins...); len(seen) > 0 {
		t.Errorf("packets went past the proxy: %v", seen)
	}
	var shown struct {
		NetworkPolicy map[string]any `json:"network_policy"`
	}
	if err := w.Client.Do(t.Context(), "GET", "/v2/box/"+box+"/config/network-policy", nil, &shown); err != nil {
		t.Fatal(err)
	}
	hidden(t, w, box)
	harness.Contains(t, w.MustSh(box, "echo fine"), "fine")
}
