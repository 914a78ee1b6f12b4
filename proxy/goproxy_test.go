package proxy_test

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/elazarl/goproxy"

	"boxgate/proxy/proxytest"
)

// This file contains the cases of docs/dependencies.md that show why the explicit proxy is not goproxy in an http.Server.
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
