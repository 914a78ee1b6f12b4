package websocket

import (
	"testing"
	"unicode/utf8"
)

// FuzzUTF8Check compares the check of text in pieces with that of the whole.
func FuzzUTF8Check(f *testing.F) {
	f.Add([]byte(greek), 1)
	f.Add([]byte(greek+"\xed\xa0\x80edited"), 3)
	f.Add([]byte("\xf0\x9f\x98"), 2)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if size < 1 || size > 1<<10 {
			return
		}
		var c utf8Check
		valid := true
		for rest := text; valid && len(rest) > 0; {
			n := min(size, len(rest))
			valid = c.add(rest[:n])
			rest = rest[n:]
		}
		if got := valid && c.whole(); got != utf8.Valid(text) {
			t.Errorf("%q in pieces of %d: %v", text, size, got)
		}
	})
}

// FuzzDeflate sends messages through both directions of the compression, with and without context takeover.
func FuzzDeflate(f *testing.F) {
	f.Add([]byte("Hello"), []byte("Hello, Hello"), false, 0)
	f.Add([]byte{}, make([]byte, 2000), true, 512)
	f.Fuzz(func(t *testing.T, first, second []byte, forgets bool, window int) {
		if window != 0 && window != 512 {
			return
		}
		out, in := deflater{forgets: forgets, window: window}, inflater{forgets: forgets}
		for _, m := range [][]byte{first, second, first} {
			packed, err := out.compress(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := in.decompress(packed); err != nil || string(got) != string(m) {
				t.Fatalf("%x came back as %x, %v", m, got, err)
			}
		}
	})
}
