package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/elazarl/goproxy"

	"boxgate/audit"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/peek/peektest"
	"boxgate/proxy/proxytest"
)

// curl runs the real curl, without its configuration and proxies from the environment, and returns its output and exit
// code.
func curl(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "curl", append([]string{"-q", "-sS", "--noproxy", "", "--max-time", "15"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// web is an HTTPS server that answers one request per connection.
func web(r *proxytest.Rig, name string) netip.AddrPort {
	cert := r.Upstream.Certificate(r.T, name)
	return r.Server(443, func(c net.Conn) {
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		defer s.Close()
		if _, err := proxytest.FirstLine(s); err == nil {
			_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nowner\n")
		}
	})
}

func TestCurlExits35OnADeniedName(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	owner := web(r, "good.example")
	r.Names.Set("good.example", owner.Addr())
	to := func(name string) (string, int) {
		return curl(t, "--cacert", r.Upstream.File(t), "--connect-to", "::"+r.Listen(owner), "https://"+name+"/")
	}
	if out, code := to("good.example"); code != 0 || out != "owner\n" {
		t.Errorf("allowed: %q, exit %d", out, code)
	}
	if out, code := to("bad.example"); code != 35 || !strings.Contains(out, "access denied") {
		t.Errorf("denied: %q, exit %d", out, code)
	}
}

func TestCurlThroughTheExplicitProxy(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example", "plain.example"))
	owner := web(r, "good.example")
	r.Names.Set("good.example", owner.Addr())
	plain := r.Server(80, func(c net.Conn) {
		defer c.Close()
		if line, _ := proxytest.FirstLine(c); strings.HasPrefix(line, "GET /x HTTP/1.1") {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nplain\n")
		}
	})
	r.Names.Set("plain.example", plain.Addr())
	through := []string{"--cacert", r.Upstream.File(t), "-x", "http://" + r.Explicit()}
	get := func(url string) (string, int) { return curl(t, append(through, url)...) }

	if out, code := get("https://good.example/"); code != 0 || out != "owner\n" {
		t.Errorf("CONNECT to an allowed name: %q, exit %d", out, code)
	}
	if out, code := get("https://bad.example/"); code != 56 || !strings.Contains(out, "403") {
		t.Errorf("CONNECT to a denied name: %q, exit %d", out, code)
	}
	if e := r.WantReason(name.ReasonNotAllowed); e.Name != "bad.example" || e.Port != 443 || e.Status != 403 || e.Action != audit.ActionRefuse {
		t.Errorf("%+v", e)
	}
	if out, code := get("https://" + owner.Addr().String() + "/"); code != 56 || !strings.Contains(out, "403") {
		t.Errorf("CONNECT to an address that no rule allows: %q, exit %d", out, code)
	}
	if out, code := get("http://plain.example/x"); code != 0 || out != "plain\n" {
		t.Errorf("absolute form: %q, exit %d", out, code)
	}
	if out, code := get("http://bad.example/x"); code != 0 || !strings.Contains(out, `"reason":"not_allowed"`) {
		t.Errorf("absolute form of a denied name: %q, exit %d", out, code)
	}
}

// connect opens a tunnel and returns it with the status line.
func connect(r *proxytest.Rig, addr, authority, early string) (*net.TCPConn, string) {
	r.T.Helper()
	c, status, err := tryConnect(r, addr, authority, early)
	if err != nil {
		r.T.Fatalf("CONNECT %s: %v", authority, err)
	}
	return c, status
}

// tryConnect is connect for a proxy that may close the connection without an answer.
func tryConnect(r *proxytest.Rig, addr, authority, early string) (*net.TCPConn, string, error) {
	r.T.Helper()
	c, err := proxytest.TryDial(r.T, addr)
	if err != nil {
		return nil, "", err
	}
	_, _ = io.WriteString(c, "CONNECT "+authority+" HTTP/1.1\r\nHost: "+authority+"\r\n\r\n"+early)
	status, err := proxytest.FirstLine(c)
	if strings.Contains(status, " 200 ") {
		_, _ = proxytest.FirstLine(c) // the empty line
	}
	return c, strings.TrimSpace(status), err
}

func TestConnectTunnelIsBoundToItsName(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example", "other.example"))
	owner := r.TLSServer("good.example")
	r.Names.Set("good.example", owner.Addr())
	r.Names.Set("other.example", r.Trap(443).Addr())
	proxy := r.Explicit()
	c, _ := connect(r, proxy, "good.example:443", "")
	if got, err := r.Hello(c, "good.example"); err != nil || got != "hello from good.example" {
		t.Errorf("%q, %v", got, err)
	}
	c, _ = connect(r, proxy, "good.example:443", "") // both are allowed, but SNI and CONNECT differ
	if _, err := r.Hello(c, "other.example"); !proxytest.AccessDeniedAlert(err) {
		t.Errorf("another SNI in the tunnel: %v", err)
	}
	r.WantReason(name.ReasonAuthorityMismatch)
}

func TestConnectToAnAddressNeedsAnAddressRule(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	echo := r.Server(7010, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.Names.Grant("good.example", echo.Addr())
	proxy := r.Explicit()
	if _, status := connect(r, proxy, echo.String(), ""); status != "HTTP/1.1 403 Forbidden" {
		t.Errorf("%q", status)
	}
	r.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedCIDRs: []string{echo.Addr().String()}}, nil)
	c, status := connect(r, proxy, echo.String(), "sent early with the head\n")
	if got, err := proxytest.FirstLine(c); err != nil || got != "sent early with the head" {
		t.Errorf("%q, %q, %v", status, got, err)
	}
}

func TestServerThatSpeaksFirstInATunnel(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("git.example"))
	server := r.Server(22, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-server\n")
		c.Close()
	})
	r.Names.Set("git.example", server.Addr())
	c, status := connect(r, r.Explicit(), "git.example:22", "")
	if got, err := proxytest.FirstLine(c); err != nil || got != "SSH-2.0-server" {
		t.Errorf("%q, %q, %v", status, got, err)
	}
}

func TestHeaderRulesHoldInsideATunnel(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("api.example"))
	r.Policy(proxytest.Allow("api.example"), map[string]map[string]string{"api.example": {"Authorization": "Bearer of the gateway"}})
	cert := r.Upstream.Certificate(t, "api.example")
	server := r.Server(443, func(c net.Conn) { // answers with the received Authorization
		defer c.Close()
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		defer s.Close()
		req, err := http.ReadRequest(bufio.NewReader(s))
		if err != nil {
			return
		}
		got := strings.Join(req.Header.Values("Authorization"), "|")
		_, _ = fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(got), got)
	})
	r.Names.Set("api.example", server.Addr())
	args := []string{"--cacert", r.BoxCA.File(t), "-H", "Authorization: of the box", "https://api.example/"}
	for way, how := range map[string][]string{
		"explicit":    {"-x", "http://" + r.Explicit()},
		"transparent": {"--connect-to", "::" + r.Listen(server)},
	} {
		if out, code := curl(t, append(how, args...)...); code != 0 || out != "Bearer of the gateway" {
			t.Errorf("%s: %q, exit %d", way, out, code)
		}
	}
	if e := r.Want("interception", func(e audit.Event) bool {
		return e.Stage == policy.StageConn && e.Action == audit.ActionIntercept && e.Phase != audit.PhaseOpen // on a busy machine there is one of phase open as well
	}); e.Name != "api.example" || e.BytesIn == 0 || e.BytesOut == 0 {
		t.Errorf("%+v", e)
	}
}

func TestWhatTheExplicitProxyRefuses(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.77")
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.Own = []netip.Addr{own} })
	proxy := r.Explicit()
	for authority, want := range map[string]string{
		"127.0.0.77:8600":     "403", // the gateway itself
		"[::ffff:10.0.0.1]:1": "403",
		"169.254.169.254:80":  "403",
		"0xa9fea9fe:80":       "400", // an obfuscated address is not a name
		"2852039166:80":       "400",
		"good.example":        "400", // no port
		"good.example:0":      "400",
		"good.example:443x":   "400",
		"a..b:443":            "400",
	} {
		if _, status := connect(r, proxy, authority, ""); !strings.HasPrefix(status, "HTTP/1.1 "+want+" ") {
			t.Errorf("CONNECT %s: %q, want %s", authority, status, want)
		}
	}
	for what, head := range map[string]string{
		"origin form":     "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"https in a GET":  "GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"two authorities": "GET http://good.example/ HTTP/1.1\r\nHost: bad.example\r\n\r\n",
		"a broken head":   "CONNECT good.example:443 HTTP/1.1\r\nno colon here\r\n\r\n",
	} {
		c := proxytest.DialTo(t, proxy)
		_, _ = io.WriteString(c, head)
		if got := closedWithout(t, c); !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) {
			t.Errorf("%s: %q", what, got)
		}
	}
	c := proxytest.DialTo(t, proxy)
	_, _ = c.Write(peektest.Named(t, "good.example"))
	if got := closedWithout(t, c); len(got) > 0 {
		t.Errorf("TLS to the proxy itself: %q", got)
	}
	r.WantReason(name.ReasonHostPort)
	r.WantReason(name.ReasonProtocol)
}

func TestGoproxyDialsNothingByItself(t *testing.T) {
	front := proxy.NewFront()
	if front.Tr.Proxy != nil || front.Tr.TLSClientConfig != nil || front.AllowHTTP2 || front.CertStore != nil {
		t.Error("a default of goproxy is left")
	}
	for what, dial := range map[string]func() (net.Conn, error){
		"ConnectDial": func() (net.Conn, error) { return front.ConnectDial("tcp", "127.0.0.1:1") },
		"ConnectDialWithReq": func() (net.Conn, error) {
			return front.ConnectDialWithReq(httptest.NewRequest("CONNECT", "a:1", nil), "tcp", "127.0.0.1:1")
		},
		"DialContext":    func() (net.Conn, error) { return front.Tr.DialContext(t.Context(), "tcp", "127.0.0.1:1") },
		"DialTLSContext": func() (net.Conn, error) { return front.Tr.DialTLSContext(t.Context(), "tcp", "127.0.0.1:1") },
	} {
		if c, err := dial(); c != nil || !errors.Is(err, proxy.ErrFrontDials) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, r := range []*http.Request{
		httptest.NewRequest("GET", "http://127.0.0.1:1/", nil), httptest.NewRequest("GET", "/", nil), httptest.NewRequest("CONNECT", "127.0.0.1:1", nil),
	} {
		w := httptest.NewRecorder()
		if front.ServeHTTP(w, r); w.Code < 400 {
			t.Errorf("%s %s: %d", r.Method, r.URL, w.Code)
		}
	}
}

func TestListenTransparentTakesAddressesThatAreNotTheHosts(t *testing.T) {
	nightly.Root(t)
	for _, addr := range []string{"203.0.113.7:0", "[2001:db8::7]:0"} {
		ln, err := proxy.ListenTransparent(context.Background(), addr) // succeeds only with the socket option
		if err != nil {
			t.Error(err)
			continue
		}
		ln.Close()
	}
	if ln, err := proxy.ListenTransparent(context.Background(), "localhost:0"); err == nil {
		ln.Close()
		t.Error("a name was taken for an address")
	}
}

// This part contains the cases of docs/dependencies.md that show why the explicit proxy is not goproxy in an http.Server.
// Each case is tested with both: if one passes in goproxy some day, the reason is gone, and the test fails.

// goproxyTo serves goproxy, configured as strictly as possible, and returns its address. It can dial one server only.
func goproxyTo(t *testing.T, server netip.AddrPort) string {
	front := goproxy.NewProxyHttpServer()
	front.Logger = log.New(io.Discard, "", 0)
	front.KeepAcceptEncoding, front.PreventCanonicalization = true, true
	front.ConnectDial = nil
	front.Tr = &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.String())
		},
	}
	t.Cleanup(front.Tr.CloseIdleConnections)
	front.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		if r.Host != r.URL.Host || r.Header.Get("Host") != "" || r.Header.Get("Content-Length") != "" && len(r.TransferEncoding) > 0 {
			return r, goproxy.NewResponse(r, goproxy.ContentTypeText, http.StatusBadRequest, "")
		}
		return r, nil
	})
	front.OnRequest().HandleConnectFunc(func(host string, ctx *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		if ctx.Req.RequestURI != host || ctx.Req.Host != host {
			return goproxy.RejectConnect, host
		}
		return goproxy.OkConnect, host
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: front, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return ln.Addr().String()
}

// passed is one request through a proxy: the bytes that its server read, and those that the client did.
type passed struct{ server, client string }

// reaches matches if the server received a text.
func reaches(text string) func(passed) bool {
	return func(p passed) bool { return strings.Contains(p.server, text) }
}

// reachesWithout matches if the server received a request without a text.
func reachesWithout(text string) func(passed) bool {
	return func(p passed) bool { return p.server != "" && !strings.Contains(p.server, text) }
}

// returns matches if the client received a text.
func returns(text string) func(passed) bool {
	return func(p passed) bool { return strings.Contains(p.client, text) }
}

// returnsWithout matches if the client received the end of the response, without a text.
func returnsWithout(text string) func(passed) bool {
	return func(p passed) bool { return strings.Contains(p.client, "<html>") && !strings.Contains(p.client, text) }
}

// badRequest matches if the request was refused and not forwarded.
func badRequest(p passed) bool { return p.server == "" && strings.HasPrefix(p.client, "HTTP/1.1 400 ") }

const (
	target   = "GET http://good.example/ HTTP/1.1\r\n"
	fields   = "Host: good.example\r\nConnection: close\r\n"
	response = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
)

// frontCases are requests, with the results of goproxy and of the explicit proxy.
var frontCases = []struct {
	what, request, response string
	goproxy, boxgate        func(passed) bool
}{
	{"two authorities", target + "Host: bad.example\r\nConnection: close\r\n\r\n", response, reaches("Host: good.example\r\n"), badRequest},
	{"lines that end with LF alone", strings.ReplaceAll(target+fields+"\r\n", "\r\n", "\n"), response, reaches("GET / "), badRequest},
	{"a folded line", target + fields + "X-A: 1\r\n X-B: 2\r\n\r\n", response, reaches("X-A: 1 X-B: 2\r\n"), badRequest},
	{
		"two framings", "POST http://good.example/ HTTP/1.1\r\n" + fields + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		response, reaches("POST / "), badRequest,
	},
	{
		"a length twice", "POST http://good.example/ HTTP/1.1\r\n" + fields + "Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
		response, reaches("POST / "), badRequest,
	},
	{
		"chunks in HTTP/1.0", "POST http://good.example/ HTTP/1.0\r\n" + fields + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		response, reaches("POST / "), badRequest,
	},
	{"names as sent", target + fields + "x-b: 1\r\nX-a: 2\r\n\r\n", response, reachesWithout("x-b: 1\r\nX-a: 2\r\n"), reaches("x-b: 1\r\nX-a: 2\r\n")},
	{
		"early hints", target + fields + "\r\n", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + response,
		returnsWithout("HTTP/1.1 103"), returns("HTTP/1.1 103 Early Hints\r\n"),
	},
	{"a reason phrase", target + fields + "\r\n", strings.Replace(response, "OK", "Fine", 1), returns("200 OK\r\n"), returns("200 Fine\r\n")},
}

func TestWhyGoproxyDoesNotReadRequests(t *testing.T) {
	t.Parallel()
	for _, test := range frontCases {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, proxytest.Allow("good.example"))
			got := make(chan string, 2)
			server := r.Server(80, func(c net.Conn) {
				defer c.Close()
				var read strings.Builder
				req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(c, &read)))
				if err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
				}
				got <- read.String()
				_, _ = io.WriteString(c, test.response)
			})
			r.Names.Set("good.example", server.Addr())
			through := func(proxy string) (p passed) {
				c := proxytest.DialTo(t, proxy)
				_, _ = io.WriteString(c, test.request)
				read, err := io.ReadAll(c)
				if err != nil && len(read) == 0 {
					t.Error(err)
				}
				select { // the server received it before the answer, or not at all
				case p.server = <-got:
				default:
				}
				p.client = string(read)
				return p
			}
			if p := through(goproxyTo(t, server)); !test.goproxy(p) {
				t.Errorf("goproxy passes %q and returns %q: does docs/dependencies.md still hold?", p.server, p.client)
			}
			if p := through(r.Explicit()); !test.boxgate(p) {
				t.Errorf("the explicit proxy passes %q and returns %q", p.server, p.client)
			}
		})
	}
}

// TestWhyGoproxyDoesNotAnswerConnect: it drops the data that a client sends after the head, which net/http has already
// read.
func TestWhyGoproxyDoesNotAnswerConnect(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	server := r.Server(7010, func(c net.Conn) { // echoes before it reads more
		defer c.Close()
		line, _ := proxytest.FirstLine(c)
		_, _ = io.WriteString(c, line+"\n")
	})
	r.Names.Set("good.example", server.Addr())
	for way, want := range map[string]string{goproxyTo(t, server): "second", r.Explicit(): "first"} {
		c, status := connect(r, way, "good.example:7010", "first\n")
		_, _ = io.WriteString(c, "second\n")
		if got, err := proxytest.FirstLine(c); got != want {
			t.Errorf("%s: the server read %q first, want %q: %v", status, got, want, err)
		}
	}
}

// TestWhyGoproxyDoesNotWaitForAnswers: net/http treats a client that has half-closed the connection as gone.
func TestWhyGoproxyDoesNotWaitForAnswers(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("good.example"))
	for _, own := range []bool{false, true} {
		server := r.Server(80, func(c net.Conn) {
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
				return
			}
			if !own {
				_, _ = io.Copy(io.Discard, c) // until goproxy gives up
			}
			_, _ = io.WriteString(c, response)
		})
		r.Names.Set("good.example", server.Addr())
		way, want := goproxyTo(t, server), "500"
		if own {
			way, want = r.Explicit(), "200"
		}
		c := proxytest.DialTo(t, way)
		_, _ = io.WriteString(c, target+"Host: good.example\r\n\r\n")
		_ = c.CloseWrite()
		if status, err := proxytest.FirstLine(c); !strings.HasPrefix(status, "HTTP/1.1 "+want+" ") {
			t.Errorf("%q, want %s: %v", status, want, err)
		}
	}
}
