package h1

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// readBody reads a body through a Reader and returns its content and the bytes that follow it.
func readBody(src io.Reader, b *Body) (string, string, error) {
	r := Reader{Source: src}
	defer r.Release()
	var content strings.Builder
	for {
		got, n, done, err := b.Next(r.Bytes())
		content.Write(got)
		if err != nil {
			return content.String(), "", err
		}
		r.Take(n)
		if done {
			for i := range b.Trailers { // they point into the buffer
				f := &b.Trailers[i]
				f.Name, f.Value = bytes.Clone(f.Name), bytes.Clone(f.Value)
			}
			return content.String(), string(r.Bytes()), nil
		}
		if n == 0 {
			if err := r.Fill(); err != nil {
				return content.String(), "", err
			}
		}
	}
}

func TestChunkedHoweverItArrives(t *testing.T) {
	t.Parallel()
	in := "5\r\nhello\r\n00A\r\n, world!!!\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\nNEXT"
	for name, src := range map[string]io.Reader{
		"at once":      strings.NewReader(in),
		"byte by byte": iotest.OneByteReader(strings.NewReader(in)),
		"in halves":    iotest.HalfReader(strings.NewReader(in)),
	} {
		var b Body
		b.Begin(Framing{Chunked: true}, false)
		content, rest, err := readBody(src, &b)
		if err != nil || content != "hello, world!!!" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
		if !strings.HasPrefix("NEXT", rest) {
			t.Errorf("%s: left %q", name, rest)
		}
		if len(b.Trailers) != 2 || string(b.Trailers[0].Name) != "X-Sum" {
			t.Errorf("%s: trailers %q", name, b.Trailers)
		}
	}
}

func TestRefusedChunks(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"extension":             "5;x=y\r\nhello\r\n0\r\n\r\n",
		"empty extension":       "5;\r\nhello\r\n0\r\n\r\n",
		"bare LF behind size":   "5\nhello\r\n0\r\n\r\n",
		"bare LF behind data":   "5\r\nhello\n0\r\n\r\n",
		"data longer than size": "5\r\nhello!\r\n0\r\n\r\n",
		"no digits":             "\r\nhello\r\n0\r\n\r\n",
		"sign":                  "+5\r\nhello\r\n0\r\n\r\n",
		"0x":                    "0x5\r\nhello\r\n0\r\n\r\n",
		"space":                 "5 \r\nhello\r\n0\r\n\r\n",
		"leading space":         " 5\r\nhello\r\n0\r\n\r\n",
		"sixteen digits":        "0000000000000005\r\nhello\r\n0\r\n\r\n",
		"overflow":              "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
		"endless size":          strings.Repeat("0", 100),
		"bare LF in trailers":   "0\r\nX: y\n\r\n",
		"trailer without name":  "0\r\n: y\r\n\r\n",
		"folded trailer":        "0\r\nX: y\r\n z\r\n\r\n",
		"endless trailers":      "0\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 20),
	} {
		var b Body
		b.Begin(Framing{Chunked: true}, false)
		var refusal *Error
		if _, _, err := readBody(strings.NewReader(in), &b); !errors.As(err, &refusal) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

func TestCutBodyIsNotWhole(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"5\r\nhel", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n", "5\r\nhello\r\n0\r\nX: y\r\n"} {
		var b Body
		b.Begin(Framing{Chunked: true}, false)
		if _, _, err := readBody(strings.NewReader(in), &b); !errors.Is(err, io.EOF) {
			t.Errorf("%q: %v, want EOF", in, err)
		}
	}
}

func TestExtensionsOfResponsesAreDropped(t *testing.T) {
	t.Parallel()
	var b Body
	b.Begin(Framing{Chunked: true}, true)
	content, _, err := readBody(strings.NewReader("5 ;x=\"y\";z\r\nhello\r\n0;last\r\n\r\n"), &b)
	if err != nil || content != "hello" {
		t.Errorf("%q, %v", content, err)
	}
	b.Begin(Framing{Chunked: true}, true)
	var refusal *Error
	if _, _, err := readBody(strings.NewReader("5;"+strings.Repeat("x", 8<<10)+"\r\nhello\r\n0\r\n\r\n"), &b); !errors.As(err, &refusal) {
		t.Errorf("an endless extension: %v", err)
	}
}

// TestPaddedChunkSizesOfResponses has the chunk sizes that Tomcat 6 pads to a fixed width.
func TestPaddedChunkSizesOfResponses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2   \r\nok\r\n0   \r\n\r\n": "ok",
		"2\t\r\nok\r\n0 ;x\r\n\r\n":  "ok",
		" 2\r\nok\r\n0\r\n\r\n":      "",
		"2 2\r\nok\r\n0\r\n\r\n":     "",
		"   \r\nok\r\n0\r\n\r\n":     "",
		"2\x0b\r\nok\r\n0\r\n\r\n":   "",
		" 2;x\r\nok\r\n0\r\n\r\n":    "",
	} {
		var b Body
		b.Begin(Framing{Chunked: true}, true)
		if content, _, err := readBody(strings.NewReader(in), &b); content != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", in, content, err)
		}
	}
}

func TestLength(t *testing.T) {
	t.Parallel()
	var b Body
	b.Begin(Framing{Length: 5}, false)
	content, rest, err := readBody(strings.NewReader("helloNEXT"), &b)
	if err != nil || content != "hello" || rest != "NEXT" {
		t.Errorf("%q, %q, %v", content, rest, err)
	}
}

func TestReaderGrowsForBulkAndGivesBack(t *testing.T) {
	t.Parallel()
	in := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	r := Reader{Source: bytes.NewReader(in)}
	var got int
	largest := 0
	for {
		if err := r.Fill(); err != nil {
			break
		}
		if !bytes.Equal(r.Bytes(), in[got:got+len(r.Bytes())]) {
			t.Fatal("bytes changed")
		}
		largest = max(largest, len(r.Bytes()))
		got += len(r.Bytes())
		r.Take(len(r.Bytes()))
	}
	if got != len(in) || largest != large {
		t.Errorf("read %d of %d, %d at once", got, len(in), largest)
	}
	r.Release()
	if r.buf != nil {
		t.Error("buffer kept")
	}
}

func TestReaderRefusesMoreThanAHead(t *testing.T) {
	t.Parallel()
	r := Reader{Source: strings.NewReader(strings.Repeat("x", 2*MaxHead))}
	defer r.Release()
	var err error
	for range MaxHead {
		if err = r.Fill(); err != nil {
			break
		}
	}
	var refusal *Error
	if !errors.As(err, &refusal) || len(r.Bytes()) != MaxHead {
		t.Errorf("%v with %d bytes held", err, len(r.Bytes()))
	}
}

func TestWaitHoldsNoBuffer(t *testing.T) {
	t.Parallel()
	pr, pw := io.Pipe()
	r := Reader{Source: pr}
	go func() { _, _ = pw.Write([]byte("GET")) }()
	if err := r.Wait(); err != nil || string(r.Bytes()) != "G" {
		t.Fatalf("%q, %v", r.Bytes(), err)
	}
	if err := r.Fill(); err != nil || string(r.Bytes()) != "GET" {
		t.Fatalf("%q, %v", r.Bytes(), err)
	}
	r.Release()
}
