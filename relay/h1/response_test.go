package h1

import (
	"errors"
	"testing"
)

func TestResponseBodies(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		in, method string
		body       Framing
		length     int64
		close      bool
	}{
		"length":       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", Framing{Length: 5}, 5, false},
		"chunked":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", "GET", Framing{Chunked: true}, -1, false},
		"until close":  {"HTTP/1.1 200 OK\r\n\r\n", "GET", Framing{UntilClose: true}, -1, true},
		"HTTP/1.0":     {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", "GET", Framing{Length: 5}, 5, true},
		"1.0 kept":     {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n", "GET", Framing{Length: 5}, 5, false},
		"HEAD":         {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", Framing{}, 5, false},
		"HEAD chunked": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HEAD", Framing{}, -1, false},
		"204":          {"HTTP/1.1 204 No Content\r\n\r\n", "GET", Framing{}, -1, false},
		"304":          {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "GET", Framing{}, 9, false},
		"103":          {"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", "GET", Framing{}, -1, false},
		"no reason":    {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "GET", Framing{}, 0, false},
		"close":        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", "GET", Framing{Length: 5}, 5, true},
	} {
		var r Response
		n, err := r.Parse([]byte(try.in+"rest"), try.method)
		if err != nil || n != len(try.in) {
			t.Errorf("%s: %d, %v", name, n, err)
			continue
		}
		if r.Body != try.body || r.Length != try.length || r.Close != try.close {
			t.Errorf("%s: %+v, length %d, close %v", name, r.Body, r.Length, r.Close)
		}
	}
}

// TestLooseResponses has the strict form of responses that RFC 9112 lets a client take.
func TestLooseResponses(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		in, fields string
		body       Framing
		close      bool
	}{
		"length twice": {"Content-Length: 5\r\nX: y\r\ncontent-length:  5\r\n", "Content-Length: 5\r\nX: y\r\n", Framing{Length: 5}, false},
		"list":         {"Content-Length: 5, 5\r\n", "Content-Length: 5\r\n", Framing{Length: 5}, false},
		"list twice":   {"Content-Length: 5,5\r\nContent-Length: 5 , 5\r\n", "Content-Length: 5\r\n", Framing{Length: 5}, false},
		"identity":     {"Transfer-Encoding: Identity\r\nContent-Length: 5\r\n", "Content-Length: 5\r\n", Framing{Length: 5}, true},
		"identity to the end": {
			"Transfer-Encoding: identity\r\n", "", Framing{UntilClose: true}, true,
		},
		"comma after":  {"Transfer-Encoding: chunked,\r\n", "Transfer-Encoding: chunked\r\n", Framing{Chunked: true}, false},
		"comma before": {"Transfer-Encoding: , chunked\r\n", "Transfer-Encoding: chunked\r\n", Framing{Chunked: true}, false},
	} {
		in := []byte("HTTP/1.1 200 OK\r\n" + try.in + "\r\n")
		var r Response
		if n, err := r.Parse(in, "GET"); err != nil || n != len(in) {
			t.Errorf("%s: %d, %v", name, n, err)
			continue
		}
		if got, want := string(written(in, &r)), "HTTP/1.1 200 OK\r\n"+try.fields+"\r\n"; got != want {
			t.Errorf("%s: written %q, want %q", name, got, want)
		}
		if r.Body != try.body || r.Close != try.close {
			t.Errorf("%s: %+v, close %v", name, r.Body, r.Close)
		}
		var q Request
		if _, err := q.Parse([]byte("POST / HTTP/1.1\r\nHost: a\r\n" + try.in + "\r\n")); err == nil {
			t.Errorf("%s: taken in a request", name)
		}
	}
}

func TestRefusedResponses(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"both framings":       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"two lengths":         "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"list of two lengths": "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
		"list, then another":  "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 6\r\n\r\n",
		"empty in a list":     "HTTP/1.1 200 OK\r\nContent-Length: 5,\r\n\r\n",
		"sign in a list":      "HTTP/1.1 200 OK\r\nContent-Length: 5, +5\r\n\r\n",
		"two codings":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"chunked twice":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
		"chunked in two":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
		"identity, chunked":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n",
		"no coding":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: ,\r\n\r\n",
		"parameter":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked;q=1\r\n\r\n",
		"comma, and a length": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\nContent-Length: 5\r\n\r\n",
		"unknown coding":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
		"bare LF":             "HTTP/1.1 200 OK\nContent-Length: 5\n\n",
		"control byte":        "HTTP/1.1 200 OK\r\nX: \x01\r\n\r\n",
		"control in reason":   "HTTP/1.1 200 O\x1bK\r\n\r\n",
		"obs-fold":            "HTTP/1.1 200 OK\r\nX: a\r\n\tb\r\n\r\n",
		"two-digit status":    "HTTP/1.1 20 OK\r\n\r\n",
		"status 000":          "HTTP/1.1 000 OK\r\n\r\n",
		"not HTTP":            "SSH-2.0-OpenSSH\r\n\r\n",
		"HTTP/2 in plain":     "HTTP/2 200 OK\r\n\r\n",
		"chunked in HTTP/1.0": "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		var r Response
		var refusal *Error
		if _, err := r.Parse([]byte(in), "GET"); !errors.As(err, &refusal) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked,\r\n\r\n5  \r\nhello\r\n0 \t\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 304 Not Modified\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nuntil the end"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var r Response
		n, err := r.Parse(in, "GET")
		if err != nil {
			return
		}
		sameAsNetHTTP(t, in, n, &r)
	})
}
