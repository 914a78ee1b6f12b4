package h2

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
)

// FuzzServerFrames feeds arbitrary bytes, in pieces of any size: the outcome is the same, nothing is added to them, and
// nothing comes behind a refusal.
func FuzzServerFrames(f *testing.F) {
	var wire bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	fr.AllowIllegalWrites = true
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = fr.WriteWindowUpdate(0, 1<<20)
	_ = fr.WriteRawFrame(0xa, 0, 0, []byte("alt-svc"))
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
	_ = fr.WriteContinuation(1, true, []byte{0x88})
	_ = fr.WritePriority(1, http2.PriorityParam{StreamDep: 3})
	_ = fr.WriteData(1, true, []byte("data"))
	_ = fr.WriteData(1, true, []byte("more"))
	f.Add(wire.Bytes())
	f.Add([]byte("\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff"))
	f.Add([]byte("\x00\x40\x01\x00\x00\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		read := func(r io.Reader) ([]byte, http2.ErrCode) {
			code := http2.ErrCodeNo
			s := newServerFrames(r, func(c http2.ErrCode) { code = c })
			s.opened.Store(3)
			got, err := io.ReadAll(s)
			if errors.Is(err, ErrServer) != (code != http2.ErrCodeNo) {
				t.Fatalf("the error is %v, the server was told %v", err, code)
			}
			return got, code
		}
		whole, code := read(bytes.NewReader(sent))
		pieces, again := read(iotest.OneByteReader(bytes.NewReader(sent)))
		if !bytes.Equal(whole, pieces) || code != again {
			t.Fatalf("read at once %x %v, in pieces %x %v", whole, code, pieces, again)
		}
		if bytes.Contains(sent, []byte{0, byte(http2.SettingMaxFrameSize)}) { // whose value may be ours
			return
		}
		rest := sent
		for _, b := range whole {
			at := bytes.IndexByte(rest, b)
			if at < 0 {
				t.Fatalf("%x became %x", sent, whole)
			}
			rest = rest[at+1:]
		}
	})
}

// TestServerFramesLetsOrderlyFramesPass holds what servers do in good order to come through unchanged.
func TestServerFramesLetsOrderlyFramesPass(t *testing.T) {
	var wire bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	if err := errors.Join(
		fr.WriteSettings(), fr.WriteSettingsAck(), fr.WriteWindowUpdate(0, 1<<31-1-h2WindowFirst), // as far up as it goes
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}}), fr.WriteContinuation(1, true, nil),
		fr.WriteData(1, false, make([]byte, FrameMax)), fr.WriteData(3, false, nil), fr.WriteData(1, true, nil),
		fr.WriteWindowUpdate(1, 5), fr.WriteRSTStream(1, http2.ErrCodeNo), // what may follow the end of a stream
		fr.WriteRSTStream(3, http2.ErrCodeCancel), fr.WritePing(true, [8]byte{}), fr.WriteGoAway(3, http2.ErrCodeNo, nil),
	); err != nil {
		t.Fatal(err)
	}
	want := bytes.Clone(wire.Bytes())
	s := newServerFrames(&wire, func(c http2.ErrCode) { t.Errorf("refused: %v", c) })
	s.sent(http2.FrameHeader{Type: http2.FrameHeaders, StreamID: 1})
	s.sent(http2.FrameHeader{Type: http2.FrameHeaders, StreamID: 3})
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v: %x became %x", err, want, got)
	}
	// What was sent may be given back.
	s.sent(http2.FrameHeader{Type: http2.FrameData, StreamID: 3, Length: 100})
	if err := http2.NewFramer(&wire, nil).WriteWindowUpdate(0, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(s); err != nil {
		t.Error(err)
	}
}

// TestServersDoNotChooseTheSizeOfOurFrames: a server that takes longer frames than we send does not make the library set
// buffers of that size aside. Everything else it allows passes, and so does what it must not say.
func TestServersDoNotChooseTheSizeOfOurFrames(t *testing.T) {
	var sent, want bytes.Buffer
	for _, c := range []struct{ in, out http2.Setting }{
		{http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: FrameMax}},
		{http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}},
		{http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}},
	} {
		first := http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1 << 20}
		if err := errors.Join(http2.NewFramer(&sent, nil).WriteSettings(first, c.in), http2.NewFramer(&want, nil).WriteSettings(first, c.out)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(newServerFrames(iotest.OneByteReader(&sent), func(http2.ErrCode) {}))
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%x, %v; want %x", got, err, want.Bytes())
	}
}
