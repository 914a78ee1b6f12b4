package h2

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// blocks are header blocks as servers send them: without the table, with it, and odd ones.
func blocks() [][]byte {
	var indexed bytes.Buffer
	e := hpack.NewEncoder(&indexed)
	_ = e.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	_ = e.WriteField(hpack.HeaderField{Name: "x-long", Value: strings.Repeat("v", 200)})
	_ = e.WriteField(hpack.HeaderField{Name: "x-secret", Value: "s", Sensitive: true})
	plain := []byte{0x88, 0x0f, 54 - 15, 5, 'n', 'g', 'i', 'n', 'x', 0x00, 3, 'x', '-', 'a', 1, '1', 0x0f, 31 - 15, 0x80}
	return [][]byte{
		indexed.Bytes(), plain, slices.Concat(plain, indexed.Bytes(), plain),
		append([]byte{0x20}, plain...), append(slices.Clone(plain), 0x20), append(slices.Clone(plain), 0x3f, 0xe1, 0x1f),
		{0x0f, 62 - 15, 1, 'v'}, {0x00, 1, 'A', 1, 'v'}, {0x04, 0x82, 0xff, 0xff}, {0x80}, {0xbe}, {0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80},
		{0x0f}, {0x00, 0x7f, 0x80}, {0x10, 1, 'n', 1, 'v'}, {0x40, 1, 'n', 1, 'v'}, {0x7e, 1, 'v'},
	}
}

// FuzzDecoder: the decoder that remembers literals decodes what hpack does, however often and in how many parts it comes.
func FuzzDecoder(f *testing.F) {
	for i, b := range blocks() {
		f.Add(b, byte(i*3), byte(3))
		f.Add(b, byte(255), byte(2))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut, times byte) {
		const longest = 300
		var got, want []hpack.HeaderField
		d := NewDecoder(longest, func(f hpack.HeaderField, _ bool) bool {
			got = append(got, f)
			return true
		})
		h := hpack.NewDecoder(TableSize, func(f hpack.HeaderField) { want = append(want, f) })
		h.SetMaxStringLength(longest)
		at := min(int(cut), len(data))
		for range times%4 + 1 {
			var failed, fails bool
			for _, part := range [][]byte{data[:at], data[at:]} {
				if !failed {
					failed = d.Write(part) != nil
				}
				if !fails {
					_, err := h.Write(part)
					fails = err != nil
				}
			}
			if !failed && !fails {
				failed, fails = d.Close() != nil, h.Close() != nil
			}
			if failed != fails || !slices.Equal(got, want) {
				t.Fatalf("%x: %v and %v, want %v and %v", data, failed, got, fails, want)
			}
			if failed {
				return
			}
		}
	})
}

// TestRecentLiteralsDoNotAllocate: a server's usual fields cost no memory but that of their list.
func TestRecentLiteralsDoNotAllocate(t *testing.T) {
	var fields int
	d := NewDecoder(300, func(hpack.HeaderField, bool) bool { fields++; return true })
	head := []byte{0x88, 0x0f, 54 - 15, 5, 'n', 'g', 'i', 'n', 'x', 0x00, 3, 'x', '-', 'a', 1, '1'}
	if n := testing.AllocsPerRun(100, func() {
		if d.Write(head) != nil || d.Close() != nil {
			t.Error("the head is not decoded")
		}
	}); n != 0 || fields == 0 {
		t.Errorf("%v allocations", n)
	}
}
