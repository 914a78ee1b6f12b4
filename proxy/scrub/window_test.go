package scrub

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

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
