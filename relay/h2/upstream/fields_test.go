package upstream

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h2"
)

// TestFieldsAreNeverIndexed sends the same fields again and again, in heads and trailers, to a server with a table of any
// size: each is a literal marked as never indexed, but for what is in the static table.
func TestFieldsAreNeverIndexed(t *testing.T) {
	t.Parallel()
	for _, size := range []uint32{0, 4096, 1 << 20} {
		c, s := newServer(t, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
		s.preface()
		until(s, func(f *http2.SettingsFrame) bool { return f.IsAck() })
		secret := []hpack.HeaderField{{Name: "authorization", Value: "Bearer x"}, {Name: "x-empty"}, {Name: "accept-encoding", Value: "gzip, deflate", Sensitive: true}}
		for range 3 {
			st := open(t, c, false, append(request("GET", "/"), secret...))
			if err := st.CloseWrite(secret); err != nil {
				t.Fatal(err)
			}
			s.request()
			checkNeverIndexed(t, s.got, 7)
			s.request()
			checkNeverIndexed(t, s.got, 3)
		}
	}
}

func checkNeverIndexed(t *testing.T, fields []hpack.HeaderField, want int) {
	t.Helper()
	if len(fields) != want {
		t.Errorf("%d fields, want %d", len(fields), want)
	}
	for _, f := range fields {
		if public := f.Name == ":method" || f.Name == ":scheme" || f.Name == ":path"; f.Sensitive == public {
			t.Errorf("%s: never indexed %v", f.Name, f.Sensitive)
		}
	}
}

// FuzzHeads encodes fields: what is decoded is the same, and marked.
func FuzzHeads(f *testing.F) {
	f.Add("authorization", "Bearer x", "x-long", strings.Repeat("v", 300))
	f.Add(":path", "/", "cookie", "")
	f.Add("a", strings.Repeat("\xff", 20000), "b", "c")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		fields := []hpack.HeaderField{{Name: name1, Value: value1}, {Name: ":method", Value: "GET"}, {Name: name2, Value: value2}, {Name: name1, Value: value1, Sensitive: true}}
		for _, first := range []bool{true, false} {
			o := output{begun: !first}
			o.head(1, false, fields)
			block := blockOf(t, o.buf)
			if first != (block[0] == h2.NoTable) {
				t.Fatalf("the first block begins with %x", block[0])
			}
			got, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
			if err != nil || len(got) != len(fields) {
				t.Fatalf("%v, %v", got, err)
			}
			for i, g := range got {
				if w := fields[i]; g.Name != asciiLower(w.Name) || g.Value != w.Value || g.Sensitive == (h2.Static(&w) && !w.Sensitive) {
					t.Errorf("%+v became %+v", w, g)
				}
			}
		}
	})
}

// blockOf returns the header block in frames.
func blockOf(t *testing.T, frames []byte) (block []byte) {
	r := http2.NewFramer(nil, bytes.NewReader(frames))
	for {
		f, err := r.ReadFrame()
		if err != nil {
			return block
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			block = append(block, f.HeaderBlockFragment()...)
		case *http2.ContinuationFrame:
			block = append(block, f.HeaderBlockFragment()...)
		default:
			t.Fatal(f)
		}
	}
}

// asciiLower returns a name with its capital letters made small.
func asciiLower(name string) string {
	b := []byte(name)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// TestUnsoundFieldsAreNotRemembered: what was malformed once is the next time as well.
func TestUnsoundFieldsAreNotRemembered(t *testing.T) {
	t.Parallel()
	var b block
	b.init()
	for range 3 {
		b.begin(1, true)
		if err := b.dec.Write([]byte{0x00, 3, 'X', '-', 'A', 1, 'v'}); err != nil || b.dec.Close() != nil || b.bad == "" {
			t.Fatal(b.bad, err)
		}
	}
}
