package scrub

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/adler32"
	"io"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// hollow returns size bytes of gzip that decode to nothing, in a very short brotli stream.
func hollow(t testing.TB, size int) []byte {
	t.Helper()
	empty, err := Encoded([]string{"gzip"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb, err := Encoded([]string{"br"}, bytes.Repeat(empty, size/len(empty)+1))
	if err != nil || len(bomb) > size/1000 {
		t.Fatalf("%d bytes, %v", len(bomb), err)
	}
	return bomb
}

// TestNestedCodingsAreBounded: a few bytes that expand to very many between two codings, and to none after the second, end
// with an error instead of keeping the decoder busy.
func TestNestedCodingsAreBounded(t *testing.T) {
	t.Parallel()
	nested := []string{"gzip", "br"}
	if plain, fits, err := Decoded(nested, hollow(t, 1<<20), 1, Limit{Between: 4 << 20}); err != nil || !fits || len(plain) > 0 {
		t.Fatalf("within the bound: %q, %v, %v", plain, fits, err)
	}
	bomb := hollow(t, copyBetween+32<<20)
	if _, _, err := Decoded(nested, bomb, 1, Limit{Between: 4 << 20, Plain: 4 << 20, Times: 100}); !errors.Is(err, ErrExpands) || !errors.Is(err, ErrBody) {
		t.Errorf("a whole body: %v", err)
	}
	var out sink
	if err := Copy(&out, body{bytes.NewReader(bomb)}, NewStream(nil), nested, func(int) {}, nil); !errors.Is(err, ErrExpands) {
		t.Errorf("a body that is copied: %v", err)
	}
}

// TestOneCodingIsBounded: the maximum expansion of deflate passes, more does not.
func TestOneCodingIsBounded(t *testing.T) {
	t.Parallel()
	zeros := make([]byte, 48<<20)
	for coding, fails := range map[string]bool{"gzip": false, "br": true} {
		packed, err := Encoded([]string{coding}, zeros)
		if err != nil {
			t.Fatal(err)
		}
		in, err := NewDecoder([]string{coding}, bytes.NewReader(packed), Limit{Plain: 16 << 20, Times: copyTimes})
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		if errors.Is(err, ErrExpands) != fails || !fails && err != nil {
			t.Errorf("%s, %d bytes: %v", coding, len(packed), err)
		}
	}
}

// TestDecodingStops: the end of the request also stops a decoder that has no input or output for a while.
func TestDecodingStops(t *testing.T) {
	t.Parallel()
	gone, asked := errors.New("gone"), 0
	limit := Limit{Between: 1 << 30, Stop: func() error {
		if asked++; asked > 3 {
			return gone
		}
		return nil
	}}
	in, err := NewDecoder([]string{"gzip", "br"}, bytes.NewReader(hollow(t, 4<<20)), limit)
	if err == nil {
		_, err = io.ReadAll(in)
	}
	if !errors.Is(err, gone) || asked > 4 {
		t.Errorf("%v after %d parts", err, asked)
	}
}

// TestTwoDeflates: a body that is valid as zlib and as raw deflate is detected, an ordinary one of either form is not.
func TestTwoDeflates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x", strings.Repeat("ordinary text ", 1000)} {
		body, err := Encoded([]string{"deflate"}, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for what, b := range map[string][]byte{"zlib": body, "raw": body[2 : len(body)-4], "text": []byte(text)} {
			if IsTwoDeflates(b, 1<<20) {
				t.Errorf("%s of %.10q", what, text)
			}
		}
	}
	// A stored block of 156 bytes for raw deflate, and one of 65,379 bytes for zlib, which contains the end of the former.
	content := make([]byte, 65379)
	copy(content[154:], []byte{1, 0, 0, 0xff, 0xff}) // an empty last block
	both := append([]byte{0x78, 0x9c, 0, 0x63, 0xff, 0x9c, 0}, content...)
	both = binary.BigEndian.AppendUint32(append(both, 1, 0, 0, 0xff, 0xff), adler32.Checksum(content))
	plain, fits, err := Decoded([]string{"deflate"}, both, 1<<20, Limit{Plain: 1 << 20})
	if err != nil || !fits || !bytes.Equal(plain, content) {
		t.Fatalf("the body is not valid zlib: %v", err)
	}
	if !IsTwoDeflates(both, 1<<20) {
		t.Error("a body of both forms is not detected")
	}
}

// noted ignores the unneeded memory of a body.
func noted(int) {}

// TestWindows decodes bodies with windows of every size up to the largest, releases the memory that smaller ones do not
// need, and rejects larger ones.
func TestWindows(t *testing.T) {
	t.Parallel()
	for bits := 10; bits <= 24; bits++ {
		for coding, b := range map[string][]byte{"br": brotliOf(t, bits), "zstd": zstdOf(t, 1<<bits)} {
			spared := 0
			var out sink
			err := Copy(&out, body{bytes.NewReader(b)}, NewStream(nil), []string{coding}, func(n int) { spared += n }, nil)
			if 1<<bits > maxWindow {
				if !errors.Is(err, ErrWindow) || len(out.all()) > 0 {
					t.Errorf("%s, 2^%d: %v, %d bytes", coding, bits, err, len(out.all()))
				}
				continue
			}
			window := 1 << bits
			if coding == "zstd" {
				window = max(window, leastZstdWindow)
			}
			if err != nil || spared != maxWindow-window || spared >= Memory([]string{coding}) {
				t.Errorf("%s, 2^%d: %v, %d spared", coding, bits, err, spared)
			}
		}
	}
}

// TestWindowOfEveryFirstByte compares the window size read from a brotli body with the decoder's behaviour.
func TestWindowOfEveryFirstByte(t *testing.T) {
	t.Parallel()
	for bits := 10; bits <= 24; bits++ {
		head := brotliOf(t, bits)
		size, err := brotliWindow(bufio.NewReader(bytes.NewReader(head)))
		if want := 1 << bits; want <= maxWindow && (size != want || err != nil) || want > maxWindow && !errors.Is(err, ErrWindow) {
			t.Errorf("2^%d: %d, %v", bits, size, err)
		}
	}
	if _, err := brotliWindow(bufio.NewReader(bytes.NewReader([]byte{0x11}))); err != nil { // a large window, which the decoder rejects
		t.Error(err)
	}
	var out sink
	if err := Copy(&out, body{bytes.NewReader([]byte{0x11, 0x11, 0x11})}, NewStream(nil), []string{"br"}, noted, nil); err == nil {
		t.Error("a large window passes")
	}
}

func brotliOf(t *testing.T, bits int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := brotli.NewWriterOptions(&b, brotli.WriterOptions{Quality: 5, LGWin: bits})
	if _, err := w.Write(bytes.Repeat([]byte("some text "), 1000)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// zstdOf returns a body in several writes, so that the encoder does not know its size.
func zstdOf(t *testing.T, window int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := w.Write([]byte(strings.Repeat("some text ", 100))); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
