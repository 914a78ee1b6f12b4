package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

// FuzzContent: content arrives as it was sent, and truncated content never ends with io.EOF.
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

// FuzzReceive: memory is bounded by the input's length, and no input causes a panic.
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

// TestFailures: an error keeps its number between processes, and loses the path, which the caller knows.
func TestFailures(t *testing.T) {
	_, missing := os.Open("/nonexistent/file")
	_, outside := os.OpenInRoot("/", "../x")
	for _, c := range []struct {
		err     error
		errno   error
		message string
	}{
		{missing, syscall.ENOENT, "no such file or directory"},
		{fs.ErrExist, syscall.EEXIST, "file exists"},
		{fs.ErrPermission, syscall.EACCES, "permission denied"},
		{errNotRegular, syscall.EINVAL, "not a regular file"},
		{io.ErrUnexpectedEOF, nil, "unexpected EOF"},
		{outside, nil, "openat ../x: path escapes from parent"},
	} {
		got := Failed(fmt.Errorf("%w", c.err))
		var number syscall.Errno
		if got.Message != c.message && got.Message != c.err.Error() || c.errno != nil && !errors.Is(got, c.errno) || c.errno == nil && errors.As(got, &number) {
			t.Errorf("%v became %+v", c.err, got)
		}
	}
	if Failed(nil) != nil {
		t.Error("success is a failure")
	}
}

// TestMessagesAreBounded: a message that cannot be received is not sent.
func TestMessagesAreBounded(t *testing.T) {
	var wire bytes.Buffer
	if err := Send(&wire, Request{Path: make([]byte, maxMessage)}); err == nil || wire.Len() > 0 {
		t.Errorf("%v, and %d bytes were sent", err, wire.Len())
	}
	if err := Send(&wire, func() {}); err == nil || wire.Len() > 0 {
		t.Errorf("%v, and %d bytes were sent", err, wire.Len())
	}
}
