package h1

import (
	"errors"
	"strings"
	"testing"
)

const hostLine = "Host: a.example.com\r\n"

func TestRequestHead(t *testing.T) {
	t.Parallel()
	var r Request
	in := "POST /v1/x?q=1 HTTP/1.1\r\nhost: a.example.com:8443\r\nContent-Length: 5\r\nConnection: Keep-Alive, X-Hop\r\nX-Hop: 1\r\nX-Empty:\r\nExpect: 100-Continue\r\n\r\nhello"
	n, err := r.Parse([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if in[n:] != "hello" {
		t.Errorf("head ends before %q", in[n:])
	}
	if string(r.Method) != "POST" || string(r.Path) != "/v1/x?q=1" || string(r.Host) != "a.example.com:8443" || r.Form != Origin {
		t.Errorf("parsed %q %q %q", r.Method, r.Path, r.Host)
	}
	if r.Body != (Framing{Length: 5}) || r.Close || !r.Continue || r.Minor != 1 {
		t.Errorf("framing %+v close %v continue %v", r.Body, r.Close, r.Continue)
	}
	if !r.Named([]byte("x-hop")) || r.Named([]byte("x-empty")) {
		t.Error("connection options")
	}
}

// TestRequestArrivesByteByByte asks for the same answer however the bytes are cut.
func TestRequestArrivesByteByByte(t *testing.T) {
	t.Parallel()
	var r Request
	in := []byte("GET / HTTP/1.1\r\n" + hostLine + "\r\n")
	for i := range in {
		if _, err := r.Parse(in[:i]); !errors.Is(err, ErrShort) {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	if n, err := r.Parse(in); err != nil || n != len(in) {
		t.Fatal(n, err)
	}
}

func TestTargetForms(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		form            Form
		authority, path string
	}{
		"GET http://a.example.com/x?y HTTP/1.1":   {Absolute, "a.example.com", "/x?y"},
		"GET HTTPS://a.example.com:443 HTTP/1.1":  {Absolute, "a.example.com:443", "/"},
		"OPTIONS * HTTP/1.1":                      {Asterisk, "", "*"},
		"CONNECT a.example.com:443 HTTP/1.1":      {Authority, "a.example.com:443", ""},
		"GET /http://b.example.com/ HTTP/1.0":     {Origin, "", "/http://b.example.com/"},
		"GET //b.example.com/%2e%2E?%zz HTTP/1.1": {Origin, "", "//b.example.com/%2e%2E?%zz"},
		"GET /\xc3\xa4?a|b{} HTTP/1.1":            {Origin, "", "/\xc3\xa4?a|b{}"},
	} {
		var r Request
		if _, err := r.Parse([]byte(line + "\r\n" + hostLine + "\r\n")); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if r.Form != want.form || string(r.Authority) != want.authority || string(r.Path) != want.path {
			t.Errorf("%s: form %d authority %q path %q", line, r.Form, r.Authority, r.Path)
		}
	}
}

// refused holds request heads that two parsers could read in two ways, or that no honest client sends.
var refused = map[string]string{
	"CL.TE":                      "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
	"TE.CL":                      "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n",
	"TE.TE":                      "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
	"TE twice the same":          "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
	"TE obscured":                "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: xchunked\r\n\r\n",
	"TE with a vertical tab":     "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding:\x0bchunked\r\n\r\n",
	"TE list":                    "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: gzip, chunked\r\n\r\n",
	"TE not last":                "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: chunked, identity\r\n\r\n",
	"TE quoted":                  "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: \"chunked\"\r\n\r\n",
	"TE in HTTP/1.0":             "POST / HTTP/1.0\r\n" + hostLine + "Transfer-Encoding: chunked\r\n\r\n",
	"CL repeated":                "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
	"CL repeated, the same":      "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 5\r\ncontent-length: 5\r\n\r\n",
	"CL list":                    "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 5, 5\r\n\r\n",
	"CL sign":                    "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: +5\r\n\r\n",
	"CL negative":                "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: -1\r\n\r\n",
	"CL hex":                     "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 0x5\r\n\r\n",
	"CL empty":                   "POST / HTTP/1.1\r\n" + hostLine + "Content-Length:\r\n\r\n",
	"CL inner space":             "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 5 6\r\n\r\n",
	"CL overflow":                "POST / HTTP/1.1\r\n" + hostLine + "Content-Length: 18446744073709551621\r\n\r\n",
	"bare LF everywhere":         "GET / HTTP/1.1\nHost: a.example.com\n\n",
	"bare LF behind the line":    "GET / HTTP/1.1\n" + hostLine + "\r\n",
	"bare LF behind a field":     "GET / HTTP/1.1\r\n" + hostLine + "X: 1\nY: 2\r\n\r\n",
	"bare LF as the empty line":  "GET / HTTP/1.1\r\n" + hostLine + "\n",
	"bare CR in a value":         "GET / HTTP/1.1\r\n" + hostLine + "X: 1\rY: 2\r\n\r\n",
	"bare CR in the target":      "GET /\r HTTP/1.1\r\n" + hostLine + "\r\n",
	"NUL in a value":             "GET / HTTP/1.1\r\n" + hostLine + "X: a\x00b\r\n\r\n",
	"DEL in a value":             "GET / HTTP/1.1\r\n" + hostLine + "X: a\x7fb\r\n\r\n",
	"NUL in a name":              "GET / HTTP/1.1\r\n" + hostLine + "X\x00: a\r\n\r\n",
	"obs-fold":                   "GET / HTTP/1.1\r\n" + hostLine + "X: a\r\n b\r\n\r\n",
	"obs-fold as first field":    "GET / HTTP/1.1\r\n X: a\r\n" + hostLine + "\r\n",
	"space before the colon":     "GET / HTTP/1.1\r\n" + hostLine + "Content-Length : 5\r\n\r\n",
	"tab before the colon":       "GET / HTTP/1.1\r\n" + hostLine + "X\t: 5\r\n\r\n",
	"no colon":                   "GET / HTTP/1.1\r\n" + hostLine + "Whatever\r\n\r\n",
	"no name":                    "GET / HTTP/1.1\r\n" + hostLine + ": x\r\n\r\n",
	"name not ASCII":             "GET / HTTP/1.1\r\n" + hostLine + "X\xff: x\r\n\r\n",
	"no Host":                    "GET / HTTP/1.1\r\n\r\n",
	"two Hosts":                  "GET / HTTP/1.1\r\n" + hostLine + "host: b.example.com\r\n\r\n",
	"Host empty":                 "GET / HTTP/1.1\r\nHost:\r\n\r\n",
	"Host list":                  "GET / HTTP/1.1\r\nHost: a.example.com, b.example.com\r\n\r\n",
	"Host with user information": "GET / HTTP/1.1\r\nHost: a@b.example.com\r\n\r\n",
	"Host with a path":           "GET / HTTP/1.1\r\nHost: a.example.com/x\r\n\r\n",
	"Host percent-encoded":       "GET / HTTP/1.1\r\nHost: a%2eexample.com\r\n\r\n",
	"Host not ASCII":             "GET / HTTP/1.1\r\nHost: \xc3\xa4.example.com\r\n\r\n",
	"two spaces":                 "GET  / HTTP/1.1\r\n" + hostLine + "\r\n",
	"space in the target":        "GET /a b HTTP/1.1\r\n" + hostLine + "\r\n",
	"tab for space":              "GET\t/ HTTP/1.1\r\n" + hostLine + "\r\n",
	"space behind the version":   "GET / HTTP/1.1 \r\n" + hostLine + "\r\n",
	"fragment":                   "GET /#x HTTP/1.1\r\n" + hostLine + "\r\n",
	"bad escape":                 "GET /%zz HTTP/1.1\r\n" + hostLine + "\r\n",
	"cut escape":                 "GET /%2 HTTP/1.1\r\n" + hostLine + "\r\n",
	"no target":                  "GET HTTP/1.1\r\n" + hostLine + "\r\n",
	"HTTP/0.9":                   "GET /\r\n\r\n",
	"HTTP/2.0":                   "PRI * HTTP/2.0\r\n\r\n",
	"HTTP/1.2":                   "GET / HTTP/1.2\r\n" + hostLine + "\r\n",
	"http/1.1":                   "GET / http/1.1\r\n" + hostLine + "\r\n",
	"relative target":            "GET x HTTP/1.1\r\n" + hostLine + "\r\n",
	"authority target":           "GET a.example.com:80 HTTP/1.1\r\n" + hostLine + "\r\n",
	"other scheme":               "GET ftp://a.example.com/ HTTP/1.1\r\n" + hostLine + "\r\n",
	"absolute with user":         "GET http://x@a.example.com/ HTTP/1.1\r\n" + hostLine + "\r\n",
	"absolute without a host":    "GET http:///x HTTP/1.1\r\n" + hostLine + "\r\n",
	"asterisk GET":               "GET * HTTP/1.1\r\n" + hostLine + "\r\n",
	"method with a bracket":      "GE(T / HTTP/1.1\r\n" + hostLine + "\r\n",
	"empty first line":           "\r\nGET / HTTP/1.1\r\n" + hostLine + "\r\n",
	"Connection: Host":           "GET / HTTP/1.1\r\n" + hostLine + "Connection: Host\r\n\r\n",
	"Connection: Content-Length": "GET / HTTP/1.1\r\n" + hostLine + "Connection: close, content-length\r\n\r\n",
	"two Upgrades":               "GET / HTTP/1.1\r\n" + hostLine + "Upgrade: websocket\r\nUpgrade: h2c\r\n\r\n",
	"unknown expectation":        "GET / HTTP/1.1\r\n" + hostLine + "Expect: 200-ok\r\n\r\n",
	"CL with an underscore":      "POST / HTTP/1.1\r\n" + hostLine + "Content_Length: 5\r\n\r\n",
	"TE with an underscore":      "POST / HTTP/1.1\r\n" + hostLine + "transfer_encoding: chunked\r\n\r\n",
	"Trailer announces framing":  "POST / HTTP/1.1\r\n" + hostLine + "Transfer-Encoding: chunked\r\nTrailer: X, content-length\r\n\r\n",
	"too many fields":            "GET / HTTP/1.1\r\n" + hostLine + strings.Repeat("X: y\r\n", MaxFields) + "\r\n",
	"too large":                  "GET / HTTP/1.1\r\n" + hostLine + "X: " + strings.Repeat("y", MaxHead) + "\r\n\r\n",
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	for name, in := range refused {
		var r Request
		var refusal *Error
		if _, err := r.Parse([]byte(in)); !errors.As(err, &refusal) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestEndlessLineIsRefusedBeforeItEnds(t *testing.T) {
	t.Parallel()
	var r Request
	var refusal *Error
	if _, err := r.Parse([]byte(strings.Repeat("G", MaxHead))); !errors.As(err, &refusal) {
		t.Errorf("%v, want a refusal", err)
	}
}

func TestUpgradeNeedsConnection(t *testing.T) {
	t.Parallel()
	var r Request
	if _, err := r.Parse([]byte("GET / HTTP/1.1\r\n" + hostLine + "Upgrade: websocket\r\n\r\n")); err != nil || r.Upgrade != nil {
		t.Errorf("%q, %v", r.Upgrade, err)
	}
	r.Reset()
	if _, err := r.Parse([]byte("GET / HTTP/1.1\r\n" + hostLine + "Upgrade: websocket\r\nConnection: keep-alive, UPGRADE\r\n\r\n")); err != nil || string(r.Upgrade) != "websocket" {
		t.Errorf("%q, %v", r.Upgrade, err)
	}
}

func TestResetForgetsEverything(t *testing.T) {
	t.Parallel()
	var r Request
	if _, err := r.Parse([]byte("GET http://a.example.com/ HTTP/1.0\r\n" + hostLine + "Content-Length: 3\r\nConnection: x, upgrade\r\nUpgrade: y\r\nExpect: 100-continue\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	r.Reset()
	if _, err := r.Parse([]byte("GET / HTTP/1.1\r\n" + hostLine + "\r\n")); err != nil {
		t.Fatal(err)
	}
	if !r.Body.Empty() || r.Close || r.Continue || r.Upgrade != nil || r.Named([]byte("x")) || len(r.Fields) != 1 || r.Scheme != nil {
		t.Errorf("left over: %+v", r)
	}
}

func BenchmarkRequest(b *testing.B) {
	in := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: curl/8.0\r\nAccept: */*\r\n" +
		"Accept-Encoding: gzip, deflate, br\r\nContent-Type: application/json\r\nContent-Length: 512\r\nConnection: keep-alive\r\n\r\n")
	var r Request
	b.ReportAllocs()
	for b.Loop() {
		r.Reset()
		if _, err := r.Parse(in); err != nil {
			b.Fatal(err)
		}
	}
}
