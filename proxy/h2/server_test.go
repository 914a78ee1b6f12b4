package h2

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

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
		var c ServerConn
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
