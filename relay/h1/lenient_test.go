package h1

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// repairable are responses that only a lenient reader accepts, with the fields of the strict form.
var repairable = map[string]struct {
	in, fields string
	body       Framing
	repairs    Repairs
}{
	"bare LF":            {"HTTP/1.1 200 OK\nX: a\nContent-Length: 2\n\n", "X: a\r\nContent-Length: 2\r\n", Framing{Length: 2}, BareNewline},
	"bare LF at the end": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\n", "Content-Length: 2\r\n", Framing{Length: 2}, BareNewline},
	"bare LF, then CRLF": {"HTTP/1.1 200 OK\nContent-Length: 2\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, BareNewline},
	"folded":             {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\tc\r\nContent-Length: 2\r\n\r\n", "X: a b c\r\nContent-Length: 2\r\n", Framing{Length: 2}, Folded},
	"folded length":      {"HTTP/1.1 200 OK\r\nContent-Length:\r\n 2\r\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, Folded},
	"hidden in a fold":   {"HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 9\r\nContent-Length: 2\r\n\r\n", "X: a Content-Length: 9\r\nContent-Length: 2\r\n", Framing{Length: 2}, Folded},
	"fold after blanks":  {"HTTP/1.1 200 OK\r\nX: a\t \r\n \tb\r\n \r\n c\r\nContent-Length: 2\r\n\r\n", "X: a b c\r\nContent-Length: 2\r\n", Framing{Length: 2}, Folded},
	"fold of blanks":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n \r\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, Folded},
	"fold by bare LF":    {"HTTP/1.1 200 OK\r\nX: a\n b\r\nContent-Length: 2\r\n\r\n", "X: a b\r\nContent-Length: 2\r\n", Framing{Length: 2}, Folded | BareNewline},
	"blank before colon": {"HTTP/1.1 200 OK\r\nX : a\r\nContent-Length \t: 2\r\n\r\n", "X: a\r\nContent-Length: 2\r\n", Framing{Length: 2}, BlankBeforeColon},
	"blank in a name":    {"HTTP/1.1 200 OK\r\nX Y: a\r\nContent Length: 9\r\nContent-Length: 2\r\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, DroppedField},
	"odd names":          {"HTTP/1.1 200 OK\r\nX(Y): a\r\nX@Y: b\r\nX[]: c\r\nContent-Length: 2\r\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, DroppedField},
	"odd coding":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding[]: chunked\r\nContent-Length: 2\r\n\r\n", "Content-Length: 2\r\n", Framing{Length: 2}, DroppedField},
	"chunked in two":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "", Framing{Chunked: true}, ChunkedTwice},
	"chunked in a list":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, Chunked\r\n\r\n", "", Framing{Chunked: true}, ChunkedTwice},
	"length and chunked": {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n", "", Framing{Chunked: true}, LengthDropped},
	"chunked and length": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n", "", Framing{Chunked: true}, LengthDropped},
	"chunked in 1.0":     {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "", Framing{Chunked: true}, OldChunked},
	"130 fields":         {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: a\r\n", 129) + "Content-Length: 2\r\n\r\n", strings.Repeat("X: a\r\n", 129) + "Content-Length: 2\r\n", Framing{Length: 2}, ManyFields},
}

// TestLenientResponses: a lenient reader repairs what a strict one refuses, and the connection must close.
func TestLenientResponses(t *testing.T) {
	t.Parallel()
	for name, try := range repairable {
		var strict Response
		var refusal *Error
		if _, err := strict.Parse([]byte(try.in+"rest"), "GET"); !errors.As(err, &refusal) {
			t.Errorf("%s: strictly: %v, want a refusal", name, err)
		}
		r := Response{Lenient: true}
		in := []byte(try.in + "rest")
		n, err := r.Parse(in, "GET")
		if err != nil || n != len(try.in) {
			t.Errorf("%s: %d, %v", name, n, err)
			continue
		}
		if r.Body != try.body || !r.Close || r.Repairs != try.repairs || r.Repairs.String() == "" {
			t.Errorf("%s: %+v, close %v, repairs %q", name, r.Body, r.Close, r.Repairs)
		}
		var fields []byte
		for i := range r.Fields {
			if f := &r.Fields[i]; f.Kind != TransferEncoding {
				fields = AppendField(fields, f)
			}
		}
		if string(fields) != try.fields {
			t.Errorf("%s: fields %q, want %q", name, fields, try.fields)
		}
		if r.Reset(); !r.Lenient || r.Repairs != 0 || cap(r.Fields) > 2*MaxFields {
			t.Errorf("%s: after Reset: %v %q, %d fields", name, r.Lenient, r.Repairs, cap(r.Fields))
		}
	}
}

// TestStrictResponsesReadLeniently: there is nothing to repair, and the connection must close nevertheless.
func TestStrictResponsesReadLeniently(t *testing.T) {
	t.Parallel()
	r := Response{Lenient: true}
	if _, err := r.Parse([]byte("HTTP/1.1 200 OK\r\nX: a\r\nContent-Length: 2\r\n\r\n"), "GET"); err != nil || r.Repairs != 0 || !r.Close || len(r.Fields) != 2 {
		t.Errorf("%v %q, close %v, %q", err, r.Repairs, r.Close, r.Fields)
	}
}

// TestLenientResponsesThatAreRefused: these have several meanings, or cannot be written strictly.
func TestLenientResponsesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"bare CR":                     "HTTP/1.1 200 OK\r\nX: a\rContent-Length: 2\r\n\r\n",
		"CR before CRLF":              "HTTP/1.1 200 OK\r\nX: a\r\r\n\r\n",
		"bare CR in the status line":  "HTTP/1.1 200 O\rK\r\n\r\n",
		"blank before the first":      "HTTP/1.1 200 OK\r\n X: a\r\n\r\n",
		"control byte":                "HTTP/1.1 200 OK\r\nX: \x01\r\n\r\n",
		"control byte in a name":      "HTTP/1.1 200 OK\r\nX\x0b: a\r\n\r\n",
		"hidden coding":               "HTTP/1.1 200 OK\r\nTransfer-Encoding\x0b: chunked\r\nContent-Length: 2\r\n\r\n",
		"control byte, dropped field": "HTTP/1.1 200 OK\r\nX(): \x00\r\n\r\n",
		"no colon":                    "HTTP/1.1 200 OK\r\nX\r\n\r\n",
		"no name":                     "HTTP/1.1 200 OK\r\n : a\r\n\r\n",
		"underscore":                  "HTTP/1.1 200 OK\r\nContent_Length: 2\r\n\r\n",
		"two lengths":                 "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
		"two lengths and chunked":     "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n",
		"folded number":               "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n 6\r\n\r\n",
		"two codings":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"identity, chunked":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n",
		"chunked, identity":           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
		"chunked, then empty":         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding:\r\n\r\n",
		"chunked, then a comma":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: ,\r\n\r\n",
		"1,025 fields":                "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: a\r\n", 1025) + "\r\n",
		"64 KiB":                      "HTTP/1.1 200 OK\nX: " + strings.Repeat("a", 64<<10) + "\n\n",
		"upgrade":                     "HTTP/1.1 101 Switching Protocols\nConnection: Upgrade\nUpgrade: websocket\n\n",
		"not HTTP":                    "SSH-2.0-OpenSSH\n\n",
	} {
		r := Response{Lenient: true}
		var refusal *Error
		if _, err := r.Parse([]byte(in), "GET"); !errors.As(err, &refusal) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

// TestLenientBodies: line breaks of chunks and trailers are repaired like those of heads, and requests stay strict.
func TestLenientBodies(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		in      string
		repairs Repairs
		refused bool
	}{
		"strict":            {"2\r\nok\r\n0\r\nX-End: a\r\n\r\n", 0, false},
		"sizes":             {"2\nok\r\n0\nX-End: a\r\n\r\n", BareNewline, false},
		"ends of chunks":    {"2\r\nok\n0\r\nX-End: a\r\n\r\n", BareNewline, false},
		"trailers":          {"2\r\nok\r\n0\r\nX-End: a\n\n", BareNewline, false},
		"folded trailer":    {"2\r\nok\r\n0\r\nX-End:\r\n a\r\n\r\n", Folded, false},
		"odd trailer":       {"2\r\nok\r\n0\r\nX(): b\r\nX-End : a\r\n\r\n", DroppedField | BlankBeforeColon, false},
		"CR at a chunk end": {"2\r\nok\r0\r\n\r\n", 0, true},
		"chunk too long":    {"2\r\nokay\r\n0\r\n\r\n", 0, true},
		"sign":              {"+2\nok\n0\n\n", 0, true},
	} {
		b := Body{}
		b.Begin(Framing{Chunked: true}, true)
		b.Lenient = true
		content, rest, err := readBody(strings.NewReader(try.in+"NEXT"), &b)
		if try.refused {
			if err == nil {
				t.Errorf("%s: accepted as %q", name, content)
			}
			continue
		}
		if err != nil || content != "ok" || rest != "NEXT" || b.Repairs != try.repairs || fmt.Sprintf("%s %s", b.Trailers[0].Name, b.Trailers[0].Value) != "X-End a" {
			t.Errorf("%s: %q, then %q, %v, repairs %q, %q", name, content, rest, err, b.Repairs, b.Trailers)
		}
		for _, strip := range []bool{true, false} {
			var strict Body
			strict.Begin(Framing{Chunked: true}, strip)
			if _, _, err := readBody(strings.NewReader(try.in), &strict); (err == nil) != (try.repairs == 0) {
				t.Errorf("%s: strictly: %v", name, err)
			}
		}
	}
}

// FuzzLenientResponse: the strict form of a repaired head is accepted by the strict parser and by net/http, with the same framing.
func FuzzLenientResponse(f *testing.F) {
	for _, try := range repairable {
		f.Add([]byte(try.in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := Response{Lenient: true}
		n, err := r.Parse(bytes.Clone(in), "GET")
		if err != nil {
			return
		}
		strict := AppendStatus(nil, r.Status, r.Reason)
		for i := range r.Fields {
			if f := &r.Fields[i]; f.Kind != TransferEncoding {
				strict = AppendField(strict, f)
			}
		}
		if r.hasTE {
			strict = AppendPair(strict, "Transfer-Encoding", "chunked")
		}
		strict = append(strict, "\r\n"...)
		if len(strict) > MaxHead || r.Repairs&ManyFields != 0 {
			return
		}
		var again Response
		if m, err := again.Parse(strict, "GET"); err != nil || m != len(strict) || again.Body != r.Body || again.Length != r.Length || len(in) < n {
			t.Fatalf("%q became %q: %v, %+v, want %+v", in, strict, err, again.Body, r.Body)
		}
	})
}
