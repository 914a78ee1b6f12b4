package h2

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// FuzzAppendField: a decoder without a table reads the field that was appended.
func FuzzAppendField(f *testing.F) {
	for _, c := range [][2]string{
		{":method", "GET"}, {":method", "PUT"}, {":status", "200"}, {":status", "418"}, {":path", "/"}, {"www-authenticate", "Basic"},
		{"Accept", "*/*"}, {"x-long", strings.Repeat("v", 300)}, {"set-cookie", strings.Repeat("c", 127)}, {"", ""},
	} {
		f.Add(c[0], c[1], len(c[1])%2 == 0)
	}
	f.Fuzz(func(t *testing.T, name, value string, sensitive bool) {
		for i := range len(name) {
			if name[i] >= 0x80 { // no token
				return
			}
		}
		var got []hpack.HeaderField
		dec := hpack.NewDecoder(0, func(f hpack.HeaderField) { got = append(got, f) })
		block := AppendField([]byte{NoTable}, &hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive})
		if _, err := dec.Write(block); err != nil {
			t.Fatal(err)
		}
		if err := dec.Close(); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Name != strings.ToLower(name) || got[0].Value != value {
			t.Fatalf("%q: %q became %v", name, value, got)
		}
		if literal := len(block) > 2; literal && got[0].Sensitive != sensitive {
			t.Fatalf("%q: sensitive: %v", name, got[0].Sensitive)
		}
	})
}

// TestStaticTable: every entry is found by its name, and the common pseudo-header fields by their values.
func TestStaticTable(t *testing.T) {
	t.Parallel()
	var got []hpack.HeaderField
	dec := hpack.NewDecoder(0, func(f hpack.HeaderField) { got = append(got, f) })
	for i := byte(1); i <= 61; i++ {
		got = nil
		if _, err := dec.Write([]byte{0x80 | i}); err != nil {
			t.Fatal(err)
		}
		f := got[0]
		block := AppendField(nil, &f)
		got = nil
		if _, err := dec.Write(block); err != nil || got[0].Name != f.Name || got[0].Value != f.Value {
			t.Errorf("%v became %v: %v", f, got, err)
		}
		if indexed := strings.HasPrefix(f.Name, ":") && f.Value != ""; indexed && !bytes.Equal(block, []byte{0x80 | i}) {
			t.Errorf("%v is not indexed", f)
		}
		if block[0]&0x80 == 0 && block[0] == 0 {
			t.Errorf("the name of %v is a literal", f)
		}
	}
}

// TestEndHead: header blocks of all lengths around the limits of frames arrive whole.
func TestEndHead(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, FrameMax - 1, FrameMax, FrameMax + 1, 2 * FrameMax, 2*FrameMax + 1} {
		block := bytes.Repeat([]byte{0x82}, n)
		out := AppendFrameHead([]byte("before"), 0, http2.FrameHeaders, http2.FlagHeadersEndStream, 5)
		out = EndHead(append(out, block...), len("before"))
		r := http2.NewFramer(nil, bytes.NewReader(out[len("before"):]))
		var got []byte
		for ended := false; !ended; {
			frame, err := r.ReadFrame()
			if err != nil {
				t.Fatal(n, err)
			}
			switch f := frame.(type) {
			case *http2.HeadersFrame:
				got, ended = append(got, f.HeaderBlockFragment()...), f.HeadersEnded()
				if !f.StreamEnded() {
					t.Error(n, "the stream goes on")
				}
			case *http2.ContinuationFrame:
				got, ended = append(got, f.HeaderBlockFragment()...), f.HeadersEnded()
			}
			if frame.Header().StreamID != 5 || frame.Header().Length > FrameMax {
				t.Error(n, frame)
			}
		}
		if !bytes.Equal(got, block) {
			t.Errorf("%d bytes of %d", len(got), n)
		}
	}
}
