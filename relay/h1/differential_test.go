package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzRequest compares the parser with net/http, which must read each accepted request as the same method, target, fields and
// body.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\r\n\r\n"))
	f.Add([]byte("POST /x?y HTTP/1.1\r\nhost: a:80\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n"))
	f.Add([]byte("GET http://a.example.com/x HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n"))
	f.Add([]byte("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\nTrailer:\r\nTrailer: X\r\n\r\n"))
	for _, in := range refused {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var r Request
		n, err := r.Parse(in)
		if err != nil || r.Form == Absolute || r.Form == Authority {
			return // the loop forwards neither form as it came
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(in)))
		if err != nil {
			t.Fatalf("accepted what net/http refuses (%v): %q", err, in)
		}
		if theirs.Method != string(r.Method) || theirs.RequestURI != string(r.Target) || theirs.Host != string(r.Host) {
			t.Fatalf("net/http reads %q %q %q, we %q %q %q", theirs.Method, theirs.RequestURI, theirs.Host, r.Method, r.Target, r.Host)
		}
		sameFields(t, theirs.Header, r.Fields)
		sameBody(t, in[n:], r.Body, false, theirs.Body)
		for _, f := range r.Fields {
			if f.Kind == TransferEncoding && len(theirs.TransferEncoding) != 1 {
				t.Fatalf("net/http does not see chunked: %q", in)
			}
		}
	})
}

func sameAsNetHTTP(t *testing.T, in []byte, n int, r *Response) {
	t.Helper()
	strict := append(written(in, r), in[n:]...)
	theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(strict)), &http.Request{Method: "GET"})
	if err != nil {
		t.Fatalf("accepted what net/http refuses when written strictly (%v): %q", err, in)
	}
	if theirs.StatusCode != r.Status {
		t.Fatalf("net/http reads status %d, we %d", theirs.StatusCode, r.Status)
	}
	sameFields(t, theirs.Header, r.Fields)
	if r.Status >= 200 {
		sameBody(t, in[n:], r.Body, true, theirs.Body)
	}
}

// written returns the head of a response with the status line as received and its fields as a proxy sends them.
func written(in []byte, r *Response) []byte {
	line, _, _ := bytes.Cut(in, []byte("\n"))
	out := append(bytes.Clone(line), '\n')
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Kind != TransferEncoding {
			out = AppendField(out, f)
		}
	}
	if r.hasTE {
		out = AppendPair(out, "Transfer-Encoding", "chunked")
	}
	return append(out, "\r\n"...)
}

// sameFields compares all fields except the ones that net/http removes from the header.
func sameFields(t *testing.T, theirs http.Header, ours []Field) {
	t.Helper()
	want := http.Header{}
	for _, f := range ours {
		name := http.CanonicalHeaderKey(string(f.Name))
		switch name {
		case "Trailer":
			if _, kept := theirs[name]; !kept { // it is taken out of chunked messages
				continue
			}
		case "Host", "Transfer-Encoding", "Content-Length", "Connection", "Pragma", "Cache-Control":
			continue
		}
		want.Add(name, string(f.Value))
	}
	for name, values := range want {
		if strings.Join(theirs[name], "\n") != strings.Join(values, "\n") {
			t.Fatalf("field %q: net/http reads %q, we %q", name, theirs[name], values)
		}
	}
	for name := range theirs {
		if _, ok := want[name]; !ok && name != "Content-Length" && name != "Connection" && name != "Pragma" && name != "Cache-Control" {
			t.Fatalf("field %q: net/http reads %q, we nothing", name, theirs[name])
		}
	}
}

func sameBody(t *testing.T, rest []byte, framing Framing, strip bool, theirs io.Reader) {
	t.Helper()
	var b Body
	b.Begin(framing, strip)
	ours, _, err := readBody(bytes.NewReader(rest), &b)
	if framing.UntilClose && errors.Is(err, io.EOF) {
		err = nil
	}
	if err != nil {
		return // refused or cut: the loop ends the connection, whatever others would read
	}
	got, err := io.ReadAll(theirs)
	if err != nil && strip && bytes.ContainsAny(rest, ";") {
		return // net/http refuses the white space that RFC 9112, 7.1.1 has before an extension
	}
	if err != nil {
		t.Fatalf("net/http fails in a body that was accepted (%v): %q", err, rest)
	}
	if string(got) != ours {
		t.Fatalf("net/http reads the body %q, we %q", got, ours)
	}
}
