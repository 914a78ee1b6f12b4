package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/proxy/h1"

	"boxgate/proxy/header"
)

// FuzzForward holds the loop against net/http: whatever is parsed and written on, net/http reads as the same method,
// target, authority, fields and body, with the gateway's header exactly once.
func FuzzForward(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example.com\r\nX: y\r\n\r\n"))
	f.Add([]byte("POST /x?y HTTP/1.1\r\nhost: a:80\r\nContent-Length: 5\r\nx_KEY: mine\r\n\r\nhello"))
	f.Add([]byte("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\nX-Key: c\r\n\r\n"))
	f.Add([]byte("GET http://a.example.com HTTP/1.0\r\nHost: a\r\nConnection: close, B\r\nB: c\r\n\r\n"))
	f.Add([]byte("OPTIONS * HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"))
	set := []policy.Header{{Name: "X-Key", Value: policy.NewSecret("s3cret")}}
	f.Fuzz(func(t *testing.T, in []byte) {
		var r h1.Request
		n, err := r.Parse(in)
		if err != nil || r.Form == h1.Authority {
			return
		}
		reader := h1.Reader{Source: bytes.NewReader(in[n:])}
		defer reader.Release()
		up := upload{set: set}
		up.body.Begin(r.Body, false)
		out, content := header.AppendRequest(nil, &r, set, false), 0
		for whole := false; !whole; {
			if out, whole, err = up.gather(&reader, out); err != nil {
				return
			}
			if !whole && up.dry && reader.Fill() != nil {
				return
			}
			if content++; content > 1000 || len(out) >= outFlush {
				return
			}
		}
		theirs, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(append(slices.Clone(out), "GET /smuggled HTTP/1.1\r\n\r\n"...))))
		if err != nil {
			t.Fatalf("%q forwarded as %q: %v", in, out, err)
		}
		if theirs.Method != string(r.Method) || theirs.RequestURI != string(r.Path) || theirs.Host != string(r.Host) {
			t.Fatalf("%q forwarded as %q: %s %s %s", in, out, theirs.Method, theirs.RequestURI, theirs.Host)
		}
		body, err := io.ReadAll(theirs.Body)
		if err != nil || int64(len(body)) != up.sent {
			t.Fatalf("%q forwarded as %q: body of %d bytes, we counted %d: %v", in, out, len(body), up.sent, err)
		}
		for name, values := range theirs.Header {
			if header.IsVariant(name, "X-Key") && (name != "X-Key" || len(values) != 1 || values[0] != "s3cret") {
				t.Fatalf("%q forwarded as %q: %s %q", in, out, name, values)
			}
		}
		if theirs.Header.Get("X-Key") != "s3cret" || theirs.Trailer["X-Key"] != nil {
			t.Fatalf("%q forwarded as %q: header %q, trailer %q", in, out, theirs.Header["X-Key"], theirs.Trailer)
		}
	})
}

// FuzzNeverIndexed cuts a stream of frames at any places: marking must change nothing but the marks.
func FuzzNeverIndexed(f *testing.F) {
	f.Add("authorization", "Bearer x", "x-long", strings.Repeat("v", 300), uint16(7))
	f.Add(":path", "/", "cookie", "", uint16(1))
	f.Add("a", strings.Repeat("\xff", 20000), "b", "c", uint16(1000))
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string, cut uint16) {
		var block, wire bytes.Buffer
		enc := hpack.NewEncoder(&block)
		enc.SetMaxDynamicTableSizeLimit(1)
		want := []hpack.HeaderField{{Name: name1, Value: value1}, {Name: ":method", Value: "GET"}, {Name: name2, Value: value2}, {Name: name1, Value: value1}}
		wire.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&wire, nil)
		if err := framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush}); err != nil {
			t.Fatal(err)
		}
		for id := uint32(1); id < 6; id += 2 {
			block.Reset()
			for _, field := range want {
				if err := enc.WriteField(field); err != nil {
					t.Fatal(err)
				}
			}
			first := min(block.Len(), 100)
			if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes()[:first], Priority: http2.PriorityParam{Weight: uint8(id)}}); err != nil {
				t.Fatal(err)
			}
			if err := framer.WriteContinuation(id, true, block.Bytes()[first:]); err != nil {
				t.Fatal(err)
			}
			if err := framer.WriteData(id, true, []byte{0, 1, 2, 0x0f}); err != nil {
				t.Fatal(err)
			}
		}
		var c neverIndexed
		marked := bytes.Clone(wire.Bytes())
		for rest := marked; len(rest) > 0; {
			n := min(int(cut)+1, len(rest))
			c.mark(rest[:n])
			rest = rest[n:]
		}
		checkMarked(t, marked, wire.Bytes(), want)
	})
}

func checkMarked(t *testing.T, marked, plain []byte, want []hpack.HeaderField) {
	t.Helper()
	if len(marked) != len(plain) || string(marked[:prefaceLen]) != http2.ClientPreface {
		t.Fatal("the stream changed")
	}
	framer := http2.NewFramer(nil, bytes.NewReader(marked[prefaceLen:]))
	framer.SetMaxReadFrameSize(1<<24 - 1)
	var got []hpack.HeaderField
	dec := hpack.NewDecoder(4096, func(f hpack.HeaderField) { got = append(got, f) })
	for {
		frame, err := framer.ReadFrame()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.HeadersFrame:
			_, err = dec.Write(frame.HeaderBlockFragment())
		case *http2.ContinuationFrame:
			_, err = dec.Write(frame.HeaderBlockFragment())
			if err == nil {
				err = dec.Close()
			}
		case *http2.DataFrame:
			if !bytes.Equal(frame.Data(), []byte{0, 1, 2, 0x0f}) {
				t.Fatal("DATA changed")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 3*len(want) {
		t.Fatalf("%d fields, want %d", len(got), 3*len(want))
	}
	for i, f := range got {
		w := want[i%len(want)]
		static := w.Name == ":method" && w.Value == "GET" || !f.Sensitive && inStaticTable(w)
		if f.Name != w.Name || f.Value != w.Value || (!static && !f.Sensitive) {
			t.Fatalf("%q: %q, never indexed %v", f.Name, f.Value, f.Sensitive)
		}
	}
}

// inStaticTable reports whether a field takes one byte, an index into the static table, which holds no secret.
func inStaticTable(f hpack.HeaderField) bool {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	enc.SetMaxDynamicTableSizeLimit(1)
	_ = enc.WriteField(hpack.HeaderField{Name: ":method", Value: "GET"}) // takes the table size update
	b.Reset()
	_ = enc.WriteField(f)
	return b.Len() == 1 && b.Bytes()[0]&0x80 != 0
}
