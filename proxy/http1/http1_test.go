package http1_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/problem"
	"boxgate/proxy/proxytest"
	"boxgate/relay/relaytest"
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

// TestSideOfEgress walks what holds on every side of the engine.
func TestSideOfEgress(t *testing.T) {
	t.Parallel()
	relaytest.Run(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		port := l.RawServer(true, server)
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		return relaytest.Rig{
			Host: proxytest.HostPort(port), Says: string(name.ReasonBadRequest), Dial: func() net.Conn { return l.DialPair(proxytest.API, port, true) },
			Logged: func(path string) (request, response int64) {
				e := l.Want(path, func(e audit.Event) bool { return e.Path == path && e.Phase != audit.PhaseOpen })
				return e.BytesOut, e.BytesIn
			},
		}
	})
}

// TestExpectIsAnswered: a client that waits for a 100 gets one, and the server the whole request at once.
func TestExpectIsAnswered(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, `, "scrub": false, `+proxytest.Everywhere))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	body := `["` + proxytest.TokenFor("KEY") + `"]`
	_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", proxytest.HostPort(port), len(body))
	if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = r.ReadString('\n')
	_, _ = io.WriteString(c, body+"GET /next HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n")
	for range 2 {
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	got, bodies := up.All()
	if len(got) != 2 || bodies[0] != `["pa\"ss\\w&o=r d+%41/"]` || got[0].Header.Get("Expect") != "" || got[1].RequestURI != "/next" {
		t.Errorf("%d requests, %q", len(got), bodies)
	}
}

// narrowServer is a server of HTTP/1.1 over TLS of which the kernel takes only a few KiB that it has not read.
func narrowServer(r *proxytest.Rig, handle func(net.Conn, *bufio.Reader)) (port uint16) {
	r.T.Helper()
	narrow := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		_ = raw.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, 536) // by which the sender's buffer is sized
			}
		})
		return err
	}}
	ln, err := narrow.Listen(r.T.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { ln.Close() })
	config := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: r.Upstream.ForHello}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				secure := tls.Server(c, config)
				handle(secure, bufio.NewReader(secure))
			}()
		}
	}()
	return proxytest.PortOf(r.T, ln)
}

// TestEarlyAnswerToAChangedBody: a server that refuses a body which the gateway has read, and reads nothing of it, has its
// answer passed on; and one that reads it slowly gets all of it.
func TestEarlyAnswerToAChangedBody(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		for how, body := range map[string]string{"changed": proxytest.TokenFor("OTHER"), "as it was": "x", "too large to be changed": strings.Repeat("x", 1<<20)} {
			t.Run(map[bool]string{false: "h1 ", true: "h2 "}[h2]+how, func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
				sent := `["` + strings.Repeat("y", 1<<20-100) + body + `"]`
				ended := make(chan struct{})
				t.Cleanup(func() { close(ended) })
				port := narrowServer(l, func(c net.Conn, r *bufio.Reader) {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					if req.URL.Path == "/refused" {
						_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
						<-ended
						return
					}
					got, err := io.ReadAll(req.Body)
					if want := strings.Replace(sent, proxytest.TokenFor("OTHER"), "from-source", 1); err != nil || string(got) != want {
						t.Errorf("the server received %d bytes, not %d: %v", len(got), len(want), err)
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				})
				l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, ", "+proxytest.Everywhere))
				for path, want := range map[string]int{"/refused": 413, "/taken": 200} {
					for _, content := range []func() io.Reader{func() io.Reader { return strings.NewReader(sent) }, func() io.Reader { return proxytest.Unsized(sent) }} {
						var status int
						var text string
						for range 3 { // under load such a narrow connection is reset now and then
							if status, text = proxytest.Send(t, l.HTTPClientLater(port, h2), "POST", "https://"+proxytest.HostPort(port)+path, http.Header{"Content-Type": {"application/json"}}, content()); status != 502 {
								break
							}
						}
						if status != want {
							t.Errorf("%s: %d %s", path, status, text)
						}
					}
				}
			})
		}
	}
}
