package worker

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// FuzzContent: what is read is what was sent, and content that breaks off anywhere never ends properly.
func FuzzContent(f *testing.F) {
	f.Add([]byte("content"), 3)
	f.Add([]byte{}, 0)
	f.Add(bytes.Repeat([]byte("x"), MaxChunk+1), MaxChunk)
	f.Fuzz(func(t *testing.T, content []byte, cut int) {
		var wire bytes.Buffer
		w := &ContentWriter{W: &wire}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		whole := wire.Bytes()
		got, err := io.ReadAll(&ContentReader{R: bytes.NewReader(whole)})
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes became %d, %v", len(content), len(got), err)
		}
		if cut < 0 || cut >= len(whole) {
			return
		}
		if _, err := io.ReadAll(&ContentReader{R: bytes.NewReader(whole[:cut])}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), err)
		}
	})
}

// FuzzReceive: no bytes make it hold more than they are, or panic.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x10{\"Op\":\"read\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var a Answer
		_ = Receive(bytes.NewReader(data), &a)
		if _, err := io.ReadAll(&ContentReader{R: bytes.NewReader(data)}); err == nil && len(data) < 4 {
			t.Error("content without an end ended")
		}
	})
}
