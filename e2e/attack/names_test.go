package attack

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// claim connects to an address with a host's name as SNI. It does not verify the certificate.
func claim(r *harness.Raider, to netip.AddrPort, sni string, alpn ...string) (*tls.Conn, error) {
	c, err := r.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true, NextProtos: alpn})
	return conn, conn.Handshake()
}

// sendRequest writes a request and reads its answer from the same connection.
func sendRequest(r *harness.Raider, c io.ReadWriter, in *bufio.Reader, text string) (*http.Response, string) {
	r.T.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		return nil, harness.Saw(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, harness.Saw(err)
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	resp.Body.Close()
	return resp, string(body)
}

// plainAnswer sends one plain HTTP request to an address and returns the status, or the box's error.
func plainAnswer(r *harness.Raider, to netip.AddrPort, host, target string) string {
	r.T.Helper()
	c, err := r.Dial("tcp", to)
	if err != nil {
		return harness.Saw(err)
	}
	defer c.Close()
	resp, seen := sendRequest(r, c, bufio.NewReader(c), "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
	if resp == nil {
		return seen
	}
	return fmt.Sprint(resp.StatusCode)
}

// reached fails the test unless exactly one request for the path arrived, at an address of the host.
func reached(w *harness.World, host, path string) {
	w.T.Helper()
	all, at := w.Net.Received("", testnet.Path(path)), w.Net.Received(host, testnet.Path(path))
	if len(all) != 1 || len(at) != 1 {
		w.T.Errorf("%s: %d requests arrived, %d of them at %s: %+v", path, len(all), len(at), host, all)
	}
}

// An allowed name is used to reach the address of an attacker, by TLS and by plain HTTP, with and without interception.
func TestAttackAllowedNameAtForeignAddress(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	evil := [2]netip.Addr{w.V4("evil.example.net"), w.V6("evil.example.net")}
	attached := map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}}
	for name, body := range map[string]map[string]any{
		"spliced":                    {"network_policy": harness.Custom("api.example.com")},
		"intercepted":                {"network_policy": harness.Custom("api.example.com"), "attach_headers": attached},
		"any name":                   {"network_policy": harness.Custom("*")},
		"intercepted, all allowed":   {"network_policy": map[string]any{"mode": "allow-all"}, "attach_headers": attached},
		"the attacker's name denied": {"network_policy": map[string]any{"mode": "custom", "denied_domains": []string{"*.example.net"}}},
		"the attacker's name denied below a wildcard": {"network_policy": map[string]any{
			"mode": "custom", "allowed_domains": []string{"*.example.com", "*.example.net"}, "denied_domains": []string{"evil.example.net"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			r := w.Raid(w.Create(body))
			w.Net.Forget()
			for family, a := range evil {
				path := fmt.Sprintf("/claimed%d", family)
				c, err := claim(r, netip.AddrPortFrom(a, 443), "api.example.com")
				if err != nil {
					t.Fatal(err)
				}
				if _, text := sendRequest(r, c, bufio.NewReader(c), "GET "+path+" HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n"); !strings.Contains(text, "GET "+path) {
					t.Errorf("the box saw %q", text)
				}
				c.Close()
				reached(w, "api.example.com", path)
				w.Event(r.Box, func(e audit.Event) bool {
					really := e.Addr == w.V4("api.example.com") || e.Addr == w.V6("api.example.com")
					return really && e.Claimed == a && e.Name == "api.example.com" && e.Verdict == policy.Allow && e.Port == 443 &&
						(e.Action == audit.ActionSplice || e.Stage == policy.StageHTTP && e.Action == audit.ActionIntercept)
				})
				if body["network_policy"].(map[string]any)["mode"] != "allow-all" { // with allow-all the kernel forwards plain HTTP
					if got := plainAnswer(r, netip.AddrPortFrom(a, 80), "api.example.com", path+"-plain"); got != "200" {
						t.Errorf("plain HTTP: the box saw %s", got)
					}
					reached(w, "api.example.com", path+"-plain")
				}
			}
			for _, req := range w.Net.Received("", testnet.Of(testnet.Request)) {
				if strings.HasSuffix(req.Target, "-plain") && req.Header.Get("Authorization") != "" {
					t.Errorf("the secret went out in plain HTTP: %+v", req)
				}
			}
			w.NothingReached("evil.example.net")
		})
	}
}

// The request inside an intercepted connection, the first or a later one, is for another host than its SNI.
func TestAttackAuthorityOtherThanSNI(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com", "*.example.net"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"Authorization": "Bearer " + harness.TestSecret}},
	}))
	w.MustSh(r.Box, "getent ahosts api.example.com")
	others := []string{"www.example.com", "evil.example.net", "api.example.com.evil.example.net", "api.example.com:8443", "evil.example.net:443",
		"198.51.100.10", "[2001:db8:1::10]", "xapi.example.com", "example.com"}
	for _, a := range []netip.Addr{w.V4("api.example.com"), w.V6("api.example.com")} {
		at := netip.AddrPortFrom(a, 443)
		for _, other := range others {
			for _, first := range []bool{true, false} {
				c, err := claim(r, at, "api.example.com")
				if err != nil {
					t.Fatal(err)
				}
				in := bufio.NewReader(c)
				if !first {
					if resp, text := sendRequest(r, c, in, "GET /good HTTP/1.1\r\nHost: api.example.com\r\n\r\n"); resp == nil || resp.StatusCode != 200 {
						t.Fatalf("the first request: %v %s", resp, text)
					}
				}
				if resp, text := sendRequest(r, c, in, "GET /mismatch HTTP/1.1\r\nHost: "+other+"\r\n\r\n"); resp == nil || resp.StatusCode != 421 {
					t.Errorf("Host %s (first: %v): the box saw %v %s", other, first, resp, text)
				}
				c.Close()
			}
		}
		for _, line := range []string{
			"GET https://evil.example.net/mismatch HTTP/1.1\r\nHost: api.example.com", "GET https://evil.example.net/mismatch HTTP/1.1\r\nHost: evil.example.net",
			"GET http://api.example.com/mismatch HTTP/1.1\r\nHost: api.example.com", "GET ftp://api.example.com/mismatch HTTP/1.1\r\nHost: api.example.com",
			"CONNECT evil.example.net:443 HTTP/1.1\r\nHost: evil.example.net:443", "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443",
			"CONNECT 203.0.113.10:443 HTTP/1.1\r\nHost: 203.0.113.10:443", "CONNECT [2001:db8:bad::10]:443 HTTP/1.1\r\nHost: api.example.com",
			"GET /mismatch HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.net", "GET /mismatch HTTP/1.1\r\nHost: api.example.com, evil.example.net",
			"GET /mismatch HTTP/1.1\r\nX-Host: api.example.com", "GET //evil.example.net/mismatch HTTP/1.1\r\nHost: evil.example.net",
			"GET @evil.example.net/mismatch HTTP/1.1\r\nHost: api.example.com", "GET evil.example.net:443 HTTP/1.1\r\nHost: api.example.com",
		} {
			c, err := claim(r, at, "api.example.com")
			if err != nil {
				t.Fatal(err)
			}
			if resp, text := sendRequest(r, c, bufio.NewReader(c), line+"\r\n\r\n"); resp == nil || resp.StatusCode/100 != 4 {
				t.Errorf("%q: the box saw %v %s", line, resp, text)
			}
			c.Close()
		}
		// An upgrade to HTTP/2 within a connection would hide the following requests.
		c, err := claim(r, at, "api.example.com")
		if err != nil {
			t.Fatal(err)
		}
		resp, text := sendRequest(r, c, bufio.NewReader(c), "GET /upgrade HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
		if resp == nil || resp.StatusCode == http.StatusSwitchingProtocols {
			t.Errorf("Upgrade: h2c: the box saw %v %s", resp, text)
		}
		mismatchH2(r, at, others)
	}
	for _, req := range w.Net.Received("", testnet.Path("/upgrade")) {
		if req.Header.Get("Upgrade") != "" || req.Header.Get("Http2-Settings") != "" {
			t.Errorf("the upgrade reached the server: %+v", req)
		}
	}
	if seen := w.Net.Received("", testnet.Path("/mismatch")); len(seen) != 0 {
		t.Errorf("%d requests arrived, the first: %+v", len(seen), seen[0])
	}
	w.NothingReached("evil.example.net")
	w.NothingReached("www.example.com")
	for _, reason := range []name.Reason{name.ReasonAuthorityMismatch, name.ReasonMethod, name.ReasonBadRequest} {
		w.Event(r.Box, func(e audit.Event) bool {
			return e.Stage == policy.StageHTTP && e.Reason == reason && e.Verdict == policy.Deny
		})
	}
}

// mismatchH2 sends HTTP/2 requests with a different :authority than the SNI, before and after a valid one.
func mismatchH2(r *harness.Raider, at netip.AddrPort, others []string) {
	r.T.Helper()
	c, err := claim(r, at, "api.example.com", "h2")
	if err != nil {
		r.T.Fatal(err)
	}
	defer c.Close()
	tr := &http.Transport{
		Protocols:      new(http.Protocols),
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return c, nil },
	}
	tr.Protocols.SetHTTP2(true)
	conn, err := tr.NewClientConn(r.T.Context(), "https", "api.example.com:443")
	if err != nil {
		r.T.Fatal(err)
	}
	status := func(host, path string) int {
		req, err := http.NewRequestWithContext(context.Background(), "GET", "https://api.example.com"+path, nil)
		if err != nil {
			r.T.Fatal(err)
		}
		req.Host = host
		resp, err := conn.RoundTrip(req)
		if err != nil {
			r.T.Errorf("HTTP/2 to %s: %v", host, err)
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	for range 2 {
		for _, other := range others {
			if got := status(other, "/mismatch"); got != 421 {
				r.T.Errorf("HTTP/2 :authority %s: the box saw %d", other, got)
			}
		}
		if got := status("api.example.com", "/good"); got != 200 {
			r.T.Errorf("HTTP/2: a good request among bad ones: %d", got)
		}
	}
}

// On plain HTTP each request of a connection is decided by its own Host.
func TestAttackSecondHostOnKeepAlive(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	r := w.Raid(w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com", "www.example.com")}))
	for family, a := range []netip.Addr{w.V4("plain.example.com"), w.V6("plain.example.com")} {
		c := r.MustDial("tcp", netip.AddrPortFrom(a, 80))
		in := bufio.NewReader(c)
		send := func(target, host string) (int, string) {
			resp, text := sendRequest(r, c, in, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
			if resp == nil {
				return 0, text
			}
			return resp.StatusCode, text
		}
		first, second := fmt.Sprintf("/first%d", family), fmt.Sprintf("/second%d", family)
		if got, text := send(first, "plain.example.com"); got != 200 {
			t.Fatalf("the first request: %d %s", got, text)
		}
		if got, text := send("/denied", "evil.example.net"); got != 403 || !strings.Contains(text, string(name.ReasonNotAllowed)) {
			t.Errorf("the second request: %d %s", got, text)
		}
		if got, text := send(second, "www.example.com"); got != 200 {
			t.Errorf("the third request: %d %s", got, text)
		}
		if got, text := send("http://evil.example.net/denied", "www.example.com"); got != 400 {
			t.Errorf("absolute form with another authority: %d %s", got, text)
		}
		reached(w, "plain.example.com", first)
		reached(w, "www.example.com", second)
		for _, request := range []string{
			"GET http://evil.example.net/denied HTTP/1.1\r\nHost: evil.example.net\r\n\r\n",
			"CONNECT evil.example.net:80 HTTP/1.1\r\nHost: evil.example.net:80\r\n\r\n",
			"CONNECT plain.example.com:80 HTTP/1.1\r\nHost: plain.example.com:80\r\n\r\n",
		} {
			c := r.MustDial("tcp", netip.AddrPortFrom(a, 80))
			if resp, text := sendRequest(r, c, bufio.NewReader(c), request); resp == nil || resp.StatusCode/100 != 4 {
				t.Errorf("%q: %v %s", request, resp, text)
			}
		}
	}
	if seen := w.Net.Received("", testnet.Path("/denied")); len(seen) != 0 {
		t.Errorf("%+v", seen)
	}
	w.NothingReached("evil.example.net")
	w.DenialOf(r.Box, policy.StageHTTP, "evil.example.net", name.ReasonNotAllowed)
}
