package http1_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxytest"
)

// TestInjectionReplacesEveryVariant sends the injected header in every spelling an origin server might take for it.
func TestInjectionReplacesEveryVariant(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	received := make(chan string, 1)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		var raw strings.Builder
		for {
			line, err := r.ReadString('\n')
			raw.WriteString(line)
			if err != nil {
				return
			}
			if line == "\r\n" {
				received <- raw.String()
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			}
		}
	})
	l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"X-Api-Key": "s3cret"}})
	c := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nX-Api-Key: a\r\nx-api-key: b\r\nX_API_KEY: c\r\n"+
		"x_api-key: d\r\nX-Keep: yes\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: x\r\nKeep-Alive: 5\r\n\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "ok" {
		t.Fatalf("%d %q", res.StatusCode, got)
	}
	e := l.Events.Wait(t, 1)[0]
	want := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nX-Keep: yes\r\nX-Api-Key: s3cret\r\n\r\n"
	if got := <-received; got != want {
		t.Errorf("the upstream received\n%s\nwant\n%s", got, want)
	}
	if e.Verdict != policy.Allow || e.Action != audit.ActionIntercept || len(e.Headers) != 1 || e.Headers[0] != "X-Api-Key" || e.Status != 200 || e.BytesIn != 2 {
		t.Errorf("event %+v", e)
	}
}

func TestPlainHTTPGetsNoSecret(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPServer(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("Authorization"))
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := l.DialPair("", port, false)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); res.StatusCode != 200 || got != "" {
		t.Errorf("%d, secret %q", res.StatusCode, got)
	}
}

// TestNextRequestUsesTheNewValue changes the rule while the connection is open.
func TestNextRequestUsesTheNewValue(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("Authorization")) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	req := "GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n"
	if got := proxytest.ReadAll(t, proxytest.Ask(t, c, r, req, "GET").Body); got != "Bearer s3cret" {
		t.Errorf("first %q", got)
	}
	l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"Authorization": "Bearer rotated"}})
	if got := proxytest.ReadAll(t, proxytest.Ask(t, c, r, req, "GET").Body); got != "Bearer rotated" {
		t.Errorf("second %q", got)
	}
	l.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	if res := proxytest.Ask(t, c, r, req, "GET"); res.StatusCode != 403 {
		t.Errorf("after deny-all: %d", res.StatusCode)
	}
}

// TestAuthorityMustBeTheSNI tries other names, on the first and on a later request.
func TestAuthorityMustBeTheSNI(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var reached atomic.Int32
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { reached.Add(1) })
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	ps := strconv.Itoa(int(port))
	for name, try := range map[string]struct {
		request string
		status  int
	}{
		"another host":           {"GET / HTTP/1.1\r\nHost: evil.example.com:" + ps + "\r\n\r\n", 421},
		"another port":           {"GET / HTTP/1.1\r\nHost: api.example.com:1\r\n\r\n", 421},
		"no port":                {"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 421},
		"suffix":                 {"GET / HTTP/1.1\r\nHost: api.example.com.evil.com:" + ps + "\r\n\r\n", 421},
		"address":                {"GET / HTTP/1.1\r\nHost: 127.0.0.1:" + ps + "\r\n\r\n", 421},
		"absolute, another":      {"GET https://evil.example.com/ HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 400},
		"absolute, both another": {"GET https://evil.example.com:" + ps + "/ HTTP/1.1\r\nHost: evil.example.com:" + ps + "\r\n\r\n", 421},
		"absolute, same":         {"GET https://" + proxytest.HostPort(port) + "/ HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 200},
		"absolute, another port": {"GET https://" + proxytest.API + ":1/ HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 400},
		"absolute, no port":      {"GET https://" + proxytest.API + "/ HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 400},
		"absolute, port of Host": {"GET https://" + proxytest.HostPort(port) + "/ HTTP/1.1\r\nHost: " + proxytest.API + ":1\r\n\r\n", 400},
		"absolute, plain scheme": {"GET http://" + proxytest.HostPort(port) + "/ HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 400},
		"CONNECT":                {"CONNECT " + proxytest.HostPort(port) + " HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 405},
		"TRACE":                  {"TRACE / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 405},
		"TRACK":                  {"TRACK / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n", 405},
		"port out of range":      {"GET / HTTP/1.1\r\nHost: api.example.com:99999\r\n\r\n", 400},
		"empty port":             {"GET / HTTP/1.1\r\nHost: api.example.com:\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			for _, first := range []bool{true, false} {
				c := l.DialPair(proxytest.API, port, true)
				r := bufio.NewReader(c)
				if !first {
					if res := proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET"); res.StatusCode != 200 {
						t.Fatal(res.Status)
					}
				}
				before := reached.Load()
				res := proxytest.Ask(t, c, r, try.request, "GET")
				if res.StatusCode != try.status || res.StatusCode != 200 && res.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("first=%v: %d %s", first, res.StatusCode, res.Header.Get("Content-Type"))
				}
				if (reached.Load() != before) != (try.status == 200) {
					t.Errorf("first=%v: the upstream was reached", first)
				}
			}
		})
	}
}

func TestAbsoluteFormGoesOnAsOrigin(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET https://API.example.com:"+strconv.Itoa(int(port))+"/x?y HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "/x?y" {
		t.Errorf("%d %q", res.StatusCode, got)
	}
}

// TestEachPlainRequestIsDecided lets the second request of a connection name another host.
func TestEachPlainRequestIsDecided(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPServer(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	l.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{proxytest.API}}, nil)
	c := l.DialPair("", port, false)
	r := bufio.NewReader(c)
	res := proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "hello" {
		t.Fatalf("%d %q", res.StatusCode, got)
	}
	res = proxytest.Ask(t, c, r, "GET /x?secret=1 HTTP/1.1\r\nHost: evil.example.com:"+strconv.Itoa(int(port))+"\r\n\r\n", "GET")
	var p problem.Problem
	if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 403 || p.Reason != name.ReasonNotAllowed || p.Host != "evil.example.com" || p.Status != 403 {
		t.Errorf("%d %+v", res.StatusCode, p)
	}
	res = proxytest.Ask(t, c, r, "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
	if got := proxytest.ReadAll(t, res.Body); got != "hello" {
		t.Errorf("after a refusal: %d %q", res.StatusCode, got)
	}
	e := l.Events.Wait(t, 3)[1]
	if e.Verdict != policy.Deny || e.Action != audit.ActionRefuse || e.Name != "evil.example.com" || e.Path != "/x" || e.Status != 403 || e.Stage != policy.StageHTTP {
		t.Errorf("event %+v", e)
	}
}

// TestRequestsToAProxyOfACompany has a client use an allowed host as its proxy, which it was told to by HTTP_PROXY: it and the
// log say what to do instead, and nothing reaches the proxy.
func TestRequestsToAProxyOfACompany(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		request string
		status  int
		told    bool
	}{
		"CONNECT":            {"CONNECT www.example.com:443 HTTP/1.1\r\nHost: www.example.com:443\r\n\r\n", 405, true},
		"absolute":           {"GET http://www.example.com/ HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 421, true},
		"origin form":        {"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 421, false},
		"trace":              {"TRACE / HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 405, false},
		"absolute elsewhere": {"GET http://www.example.com/ HTTP/1.1\r\nHost: other.example.com\r\n\r\n", 400, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			_, port := l.HTTPServer(func(http.ResponseWriter, *http.Request) { t.Error("the proxy was reached") })
			c := l.DialPair("", port, false)
			res := proxytest.Ask(t, c, bufio.NewReader(c), try.request, "GET")
			var p problem.Problem
			if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != try.status || strings.Contains(p.Detail, "upstream_proxy") != try.told {
				t.Errorf("%d %+v", res.StatusCode, p)
			}
			if e := l.Events.Wait(t, 1)[0]; e.Verdict != policy.Deny || strings.Contains(e.Error, "upstream_proxy") != try.told {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestRequestRules(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	l.Policy(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{
		{Hosts: []string{proxytest.HostPort(port)}, Paths: []string{"/admin*"}, Action: "deny"},
		{Hosts: []string{proxytest.HostPort(port)}, Methods: []string{"DELETE"}, Action: "deny"},
	}}, nil)
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	for request, status := range map[string]int{
		"GET /": 200, "GET /admin": 403, "GET /x/../admin": 403, "GET /%61dmin": 403, "DELETE /": 403, "GET //admin?x": 403,
	} {
		res := proxytest.Ask(t, c, r, request+" HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n", "GET")
		proxytest.ReadAll(t, res.Body)
		if res.StatusCode != status {
			t.Errorf("%s: %d, want %d", request, res.StatusCode, status)
		}
	}
}
