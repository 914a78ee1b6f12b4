package h2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/internal/memory"
)

// TestSettingsOnce holds what is left of repeated settings to what processing them in order would come to.
func TestSettingsOnce(t *testing.T) {
	type settings []http2.Setting
	s := func(id http2.SettingID, v uint32) http2.Setting { return http2.Setting{ID: id, Val: v} }
	const window, table, push = http2.SettingInitialWindowSize, http2.SettingHeaderTableSize, http2.SettingEnablePush
	for _, c := range []struct{ in, want settings }{
		{nil, nil},
		{settings{s(window, 1), s(push, 0)}, settings{s(window, 1), s(push, 0)}},
		{settings{s(window, 100), s(push, 0), s(window, 1)}, settings{s(window, 1), s(push, 0)}},
		{settings{s(table, 0), s(table, 4096)}, settings{s(table, 0)}},
		{settings{s(window, 1<<31), s(window, 1)}, settings{s(window, 1<<31)}}, // a fault stays one
		{settings{s(window, 1), s(window, 1<<31)}, settings{s(window, 1<<31)}},
		{settings{s(push, 7), s(push, 0)}, settings{s(push, 7)}},
		{settings{s(0xfff, 1), s(0xfff, 2), s(0xffe, 3)}, settings{s(0xfff, 2), s(0xffe, 3)}},
	} {
		var wire bytes.Buffer
		if err := http2.NewFramer(&wire, nil).WriteSettings(c.in...); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(clientReaderOf(&wire, 0))
		if err != nil {
			t.Fatal(err)
		}
		if err := http2.NewFramer(&wire, nil).WriteSettings(c.want...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, wire.Bytes()) {
			t.Errorf("%v became %x, want %x", c.in, got, wire.Bytes())
		}
	}
}

// clientReaderOf reads frames from r, behind as many bytes of preface.
func clientReaderOf(r io.Reader, preface int) *clientReader {
	in := newClientReader(nil, memory.New(1<<20, 1<<20).Account("box"), func(string, string, string) {}, func() {})
	in.source, in.preface = r, preface
	return in
}

// TestInboundHoldsNothingWhileIdle reads up to the end of a frame that was held, and of one that was not.
func TestInboundHoldsNothingWhileIdle(t *testing.T) {
	var wire bytes.Buffer
	f := http2.NewFramer(&wire, nil)
	if err := errors.Join(f.WriteSettings(http2.Setting{ID: 4, Val: 1}), f.WritePing(false, [8]byte{})); err != nil {
		t.Fatal(err)
	}
	in := clientReaderOf(&wire, 0)
	r := http2.NewFramer(nil, in)
	for range 2 {
		if _, err := r.ReadFrame(); err != nil {
			t.Fatal(err)
		}
		if in.held != nil {
			t.Error("a buffer is held between two frames")
		}
	}
}

// Requests beyond what the library gets to refuse end the connection, and that is told.
func TestRequestsFasterThanTheyAreRefused(t *testing.T) {
	var wire, block bytes.Buffer
	_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: ":method", Value: "GET"}) // into memory
	w := http2.NewFramer(&wire, nil)
	for id := range uint32(2*behindMax + 1) {
		if err := w.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*id + 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	conn := &ClientConn{clientReader: clientReaderOf(&wire, 0), streams: streamTracker{refused: func(string) {}}}
	conn.flooded = func() { told++ }
	r := http2.NewFramer(nil, conn)
	read := func(n int) error {
		for range n {
			if _, err := r.ReadFrame(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(behindMax); err != nil || told != 0 {
		t.Fatalf("%v after as many as there may be, told %d times", err, told)
	}
	conn.Handed(2*behindMax - 1) // the library goes on
	if err := read(behindMax); err != nil || told != 0 {
		t.Fatalf("%v with a library that goes on, told %d times", err, told)
	}
	if err := read(1); !errors.Is(err, errCalm) || told != 1 {
		t.Errorf("%v after one too many, told %d times", err, told)
	}
}

// FuzzInbound feeds arbitrary bytes, in pieces of any size: what comes out is the same however it came in, and but for
// SETTINGS and forbidden fields it is what went in.
func FuzzInbound(f *testing.F) {
	var wire, block bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	enc := hpack.NewEncoder(&block)
	for _, h := range [][2]string{{":method", "GET"}, {":path", "/"}, {"connection", "close"}, {"te", "x"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	_ = fr.WriteSettings(http2.Setting{ID: 4, Val: 1}, http2.Setting{ID: 4, Val: 2})
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()[:5], PadLength: 3, EndStream: true})
	_ = fr.WriteContinuation(1, true, block.Bytes()[5:])
	_ = fr.WriteData(1, true, []byte("data"))
	f.Add(wire.Bytes(), 3)
	f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x40\x01\x01\x09"), 1)
	f.Fuzz(func(t *testing.T, sent []byte, preface int) {
		if preface < 0 || preface > len(sent) {
			return
		}
		refused := 0
		read := func(r io.Reader) []byte {
			in := clientReaderOf(r, preface)
			in.malformed = func(string, string, string) { refused++ }
			got, err := io.ReadAll(in)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errCalm) {
				t.Fatal(err)
			}
			return got
		}
		whole, pieces := read(bytes.NewReader(sent)), read(iotest.OneByteReader(bytes.NewReader(sent)))
		if !bytes.Equal(whole, pieces) {
			t.Fatalf("read at once %x, in pieces %x", whole, pieces)
		}
		if refused == 0 && !hasSettings(sent[preface:]) && !bytes.HasPrefix(sent, whole) {
			t.Fatalf("%x became %x", sent, whole)
		}
		if !bytes.HasPrefix(whole, sent[:preface]) {
			t.Fatalf("the preface %x became %x", sent[:preface], whole)
		}
	})
}

func hasSettings(frames []byte) bool {
	for len(frames) >= FrameHead {
		if frames[3] == byte(http2.FrameSettings) {
			return true
		}
		n := int(binary.BigEndian.Uint32(frames)>>8) + FrameHead
		frames = frames[min(n, len(frames)):]
	}
	return false
}
