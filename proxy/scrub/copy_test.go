package scrub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"boxgate/internal/nightly"
)

// body is a source that calls wait before each read.
type body struct{ r io.Reader }

func (b body) Read(p []byte, wait func() error) (int, error) {
	if err := wait(); err != nil {
		return 0, err
	}
	return b.r.Read(p)
}

// sink collects flushed data separately from written data.
type sink struct{ written, flushed bytes.Buffer }

func (s *sink) Write(p []byte) (int, error) { return s.written.Write(p) }
func (s *sink) Flush() error {
	_, err := s.written.WriteTo(&s.flushed)
	return err
}

func (s *sink) all() []byte { return append(s.flushed.Bytes(), s.written.Bytes()...) }

type flusher interface {
	io.WriteCloser
	Flush() error
}

// coder returns an encoder with the settings of common servers.
func coder(t testing.TB, coding string, w io.Writer) flusher {
	t.Helper()
	var out flusher
	var err error
	switch coding {
	case "gzip":
		out = gzip.NewWriter(w)
	case "deflate":
		out = zlib.NewWriter(w)
	case "bare":
		out, err = flate.NewWriter(w, 6)
	case "br":
		out = brotli.NewWriterOptions(w, brotli.WriterOptions{Quality: 5, LGWin: 22})
	case "zstd":
		out, err = zstd.NewWriter(w, zstd.WithZeroFrames(true))
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func pack(t testing.TB, coding, text string) []byte {
	var b bytes.Buffer
	w := coder(t, coding, &b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(t testing.TB, coding string, b []byte) string {
	t.Helper()
	r, err := decode(coding, bytes.NewReader(b), noted)
	if err != nil {
		t.Fatalf("%s: %v", coding, err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%s: %v", coding, err)
	}
	return string(text)
}

// named returns the coding's name in Content-Encoding.
func named(coding string) string {
	if coding == "bare" {
		return "deflate"
	}
	return coding
}

var codings = []string{"gzip", "deflate", "bare", "br", "zstd"}

func copyAll(b []byte, how func(io.Reader) io.Reader, codings ...string) ([]byte, error) {
	var out sink
	err := Copy(&out, body{how(bytes.NewReader(b))}, NewStream(New([]string{secret})), codings, noted, nil)
	return out.all(), err
}

func same(r io.Reader) io.Reader { return r }

func TestCodingsAreUndoneAndDoneAgain(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("some text ", 20_000) + secret + strings.Repeat(" more text", 20_000)
	want := strings.Replace(text, secret, strings.Repeat("*", len(secret)), 1)
	for _, coding := range codings {
		for name, how := range map[string]func(io.Reader) io.Reader{"whole": same, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader} {
			got, err := copyAll(pack(t, coding, text), how, named(coding))
			if err != nil {
				t.Fatalf("%s, %s: %v", coding, name, err)
			}
			if unpack(t, named(coding), got) != want {
				t.Errorf("%s, %s: another text came out", coding, name)
			}
		}
	}
	twice := func(s string) []byte { return pack(t, "br", string(pack(t, "gzip", s))) }
	got, err := copyAll(twice(text), same, "gzip", "br")
	if err != nil || unpack(t, "gzip", []byte(unpack(t, "br", got))) != want {
		t.Errorf("two codings: %v", err)
	}
}

func TestEmptyBodies(t *testing.T) {
	t.Parallel()
	for _, coding := range codings {
		if got, err := copyAll(nil, same, named(coding)); err != nil || len(got) != 0 {
			t.Errorf("%s: %q, %v", coding, got, err)
		}
		got, err := copyAll(pack(t, coding, ""), same, named(coding))
		if err != nil || unpack(t, named(coding), got) != "" {
			t.Errorf("%s of nothing: %q, %v", coding, got, err)
		}
	}
	if got, err := copyAll(nil, same); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
}

// TestBrokenStreamsAreErrors truncates, extends and corrupts streams.
func TestBrokenStreamsAreErrors(t *testing.T) {
	t.Parallel()
	for _, coding := range codings {
		good := pack(t, coding, strings.Repeat("text with few repetitions: abcdefg", 5))
		for n := 1; n < len(good); n++ {
			if _, err := copyAll(good[:n], same, named(coding)); err == nil {
				t.Errorf("%s: a stream truncated to %d of %d bytes is accepted", coding, n, len(good))
			}
		}
		for _, how := range []func(io.Reader) io.Reader{same, iotest.OneByteReader} {
			if _, err := copyAll(append(bytes.Clone(good), "garbage behind it"...), how, named(coding)); err == nil {
				t.Errorf("%s: a stream followed by garbage is accepted", coding)
			}
		}
		if _, err := copyAll([]byte("this is plain text"), same, named(coding)); err == nil {
			t.Errorf("%s: plain text is accepted as a stream", coding)
		}
		failing := io.MultiReader(bytes.NewReader(good[:len(good)/2]), iotest.ErrReader(io.ErrClosedPipe))
		if err := Copy(&sink{}, body{failing}, NewStream(nil), []string{named(coding)}, noted, nil); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: the source's error became %v", coding, err)
		}
	}
}

// TestEventsPassAsTheyCome compresses events one by one: each must come out before the next goes in.
func TestEventsPassAsTheyCome(t *testing.T) {
	t.Parallel()
	for _, coding := range append([]string{""}, codings...) {
		r, w := io.Pipe()
		out := make(chan string, 1)
		fresh, uncoded := io.Pipe()
		done := make(chan error, 1)
		var names []string
		server := flusher(plain{w})
		if coding != "" {
			names = []string{named(coding)}
			server = coder(t, coding, w)
		}
		go func() { done <- Copy(plain{uncoded}, body{r}, NewStream(New([]string{secret})), names, noted, nil) }()
		go func() {
			var in io.Reader = fresh
			if coding != "" {
				var err error
				if in, err = decode(names[0], fresh, noted); err != nil {
					t.Error(err)
					return
				}
			}
			buf, text := make([]byte, 4096), ""
			for {
				n, err := in.Read(buf)
				if text += string(buf[:n]); strings.HasSuffix(text, "\n\n") {
					out <- text
					text = ""
				}
				if err != nil {
					return
				}
			}
		}()
		for i := range 5 {
			event := fmt.Sprintf("data: %d %s\n\n", i, secret)
			if _, err := io.WriteString(server, event); err != nil {
				t.Fatal(err)
			}
			if err := server.Flush(); err != nil {
				t.Fatal(err)
			}
			if got, want := <-out, fmt.Sprintf("data: %d %s\n\n", i, strings.Repeat("*", len(secret))); got != want {
				t.Errorf("%s: %q", coding, got)
			}
		}
		_ = server.Close()
		_ = w.Close()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", coding, err)
		}
		_ = uncoded.Close()
	}
}

type plain struct{ io.WriteCloser }

func (plain) Flush() error { return nil }

// TestBombIsNotHeld copies a stream of 256 MiB of zeros, compressed to few bytes: only windows and buffers may be
// allocated.
func TestBombIsNotHeld(t *testing.T) {
	zeros, size := make([]byte, 1<<20), nightly.Size(128, 256)<<20
	for _, coding := range codings {
		var b bytes.Buffer
		w := coder(t, coding, &b)
		for range size >> 20 {
			_, _ = w.Write(zeros)
		}
		_ = w.Close()
		w = nil
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var most uint64
		m := &watching{NewStream(New([]string{secret})), 0, func() {
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapInuse)
		}}
		if err := Copy(plain{discard{}}, body{&b}, m, []string{named(coding)}, noted, nil); err != nil {
			t.Fatal(err)
		}
		if m.n < size || most > before.HeapInuse+96<<20 {
			t.Errorf("%s: %d bytes, heap grew from %d to %d", coding, m.n, before.HeapInuse, most)
		}
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

type watching struct {
	*Stream
	n     int
	check func()
}

func (w *watching) mask(dst, part []byte) ([]byte, error) {
	if w.n>>24 != (w.n+len(part))>>24 {
		w.check()
	}
	w.n += len(part)
	return w.Stream.mask(dst, part)
}

func TestParseCodings(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"": "[]", "identity": "[]", "GZip": "[gzip]", " br , gzip": "[br gzip]", "x-gzip": "[x-gzip]", "deflate,": "[deflate]"} {
		if got, err := ParseCodings(value); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
	for _, value := range []string{"compress", "gzip, foo", "gzip, gzip, gzip", "********", "dcb", "gzip br"} {
		if got, err := ParseCodings(value); !errors.Is(err, ErrCoding) {
			t.Errorf("%q: %v, %v", value, got, err)
		}
	}
	for value, want := range map[string]string{
		"gzip, deflate, br, zstd, dcb": "gzip, deflate, br, zstd", "*": "identity", "": "identity", "compress;q=1": "identity", "GZIP;q=0.5 , *;q=0": "GZIP;q=0.5", "identity;q=0": "identity;q=0",
	} {
		if got := AcceptEncoding(value); got != want {
			t.Errorf("%q became %q", value, got)
		}
	}
}

func message(flags byte, text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text)))) + text
}

// TestMessagesAreNotHeldBack passes messages byte by byte; each must be out when its last byte is in.
func TestMessagesAreNotHeldBack(t *testing.T) {
	t.Parallel()
	m := NewMessages(New([]string{secret}))
	for _, text := range []string{"", "plain", "x" + secret, secret[:10], secret[10:], secret} {
		var out []byte
		for _, b := range []byte(message(0x80*byte(len(text)%2), text)) {
			var err error
			if out, err = m.mask(out, []byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if want := message(0x80*byte(len(text)%2), strings.ReplaceAll(text, secret, strings.Repeat("*", len(secret)))); string(out) != want {
			t.Errorf("%q was returned as %q", text, out)
		}
	}
	if _, err := m.maskEnd(nil); err != nil {
		t.Error(err)
	}
	if _, err := m.mask(nil, []byte(message(1, "x"))); !errors.Is(err, ErrCompressed) {
		t.Errorf("a compressed message: %v", err)
	}
	m = NewMessages(nil)
	if _, _ = m.mask(nil, []byte(message(0, "cut short"))[:9]); true {
		if _, err := m.maskEnd(nil); err == nil {
			t.Error("a truncated message is accepted")
		}
	}
}

func frame(first byte, payload string) string {
	b := []byte{first, 0}
	switch n := len(payload); {
	case n < 126:
		b[1] = byte(n)
	case n < 1<<16:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b[1] = 127
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return string(b) + payload
}

func TestFramesAreMasked(t *testing.T) {
	t.Parallel()
	stars := strings.Repeat("*", len(secret))
	long := strings.Repeat("a long message ", 10_000)
	for name, c := range map[string][2]string{
		"one frame": {frame(0x81, "x"+secret+"y"), frame(0x81, "x"+stars+"y")}, "binary": {frame(0x82, secret), frame(0x82, stars)},
		"fragments":      {frame(1, "x"+secret[:7]) + frame(0, secret[7:9]) + frame(0x80, secret[9:]+"y"), frame(1, "x"+stars[:7]) + frame(0, stars[7:9]) + frame(0x80, stars[9:]+"y")},
		"ping between":   {frame(1, secret[:7]) + frame(0x89, "ping") + frame(0, "") + frame(0x80, secret[7:]), frame(1, stars[:7]) + frame(0x89, "ping") + frame(0, "") + frame(0x80, stars[7:])},
		"no secret":      {frame(1, secret[:7]) + frame(0x89, "") + frame(0x80, "no"), frame(1, secret[:7]) + frame(0x89, "") + frame(0x80, "no")},
		"two messages":   {frame(0x81, secret[:7]) + frame(0x81, secret[7:]), frame(0x81, secret[:7]) + frame(0x81, secret[7:])},
		"close and ping": {frame(0x88, "\x03\xe8"+secret) + frame(0x89, secret), frame(0x88, "\x03\xe8"+stars) + frame(0x89, stars)},
		"long":           {frame(0x81, long+secret+long) + frame(0x81, strings.Repeat("b", 300)), frame(0x81, long+stars+long) + frame(0x81, strings.Repeat("b", 300))},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			f, out := NewFrames(New([]string{secret})), []byte(nil)
			for rest := c[0]; rest != ""; {
				n := min(size, len(rest))
				var err error
				if out, err = f.Append(out, []byte(rest[:n])); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				rest = rest[n:]
			}
			if string(out) != c[1] {
				t.Errorf("%s in parts of %d: %.200q", name, size, out)
			}
		}
	}
	for name, bad := range map[string]string{
		"compressed": frame(0xc1, "x"), "masked": "\x81\x81abcdx", "long control": frame(0x89, strings.Repeat("x", 126)), "cut control": frame(0x09, "x"), "huge": "\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
		"pings without end behind a tail": frame(1, secret[:7]) + strings.Repeat(frame(0x89, strings.Repeat("x", 100)), 1000),
	} {
		if _, err := NewFrames(New([]string{secret})).Append(nil, []byte(bad)); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzFrames compares frames in parts with whole frames: the results are equal, and headers are unchanged.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame(1, secret[:7])+frame(0x89, "ping")+frame(0x80, secret[7:])+frame(0x82, secret)), uint64(1))
	set := New([]string{secret, "aaaaaaaab"})
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		whole, err := NewFrames(set).Append(nil, bytes.Clone(text))
		if len(whole) > len(text) || (err == nil && string(clear(t, whole)) != string(clear(t, text[:len(whole)]))) {
			t.Fatalf("%q became %q", text, whole)
		}
		fr, out := NewFrames(set), []byte(nil)
		rng := rand.New(rand.NewPCG(seed, 0))
		var failed error
		for rest := bytes.Clone(text); len(rest) > 0 && failed == nil; {
			n := min(len(rest), 1+rng.IntN(4)*rng.IntN(8))
			out, failed = fr.Append(out, rest[:n])
			rest = rest[n:]
		}
		if (failed == nil) != (err == nil) || (err == nil && !bytes.Equal(out, whole)) {
			t.Fatalf("%q in parts became %q (%v), whole %q (%v)", text, out, failed, whole, err)
		}
	})
}

// clear returns frames with every payload blanked.
func clear(t *testing.T, b []byte) []byte {
	b = bytes.Clone(b)
	for i := 0; i+2 <= len(b); {
		size := int(b[i+1] & 0x7f)
		long := map[int]int{126: 2, 127: 8}[size]
		if i+2+long > len(b) {
			break
		}
		switch long {
		case 2:
			size = int(binary.BigEndian.Uint16(b[i+2:]))
		case 8:
			size = int(min(binary.BigEndian.Uint64(b[i+2:]), uint64(len(b))))
		}
		i += 2 + long
		for j := i; j < min(i+size, len(b)); j++ {
			b[j] = '.'
		}
		i += size
	}
	return b
}

// FuzzCopy passes arbitrary bytes to the decoders: the result is an error or a masked stream, never a panic or a secret.
func FuzzCopy(f *testing.F) {
	for i, coding := range codings {
		f.Add(pack(f, coding, "text "+secret), uint8(i))
	}
	set := New([]string{secret})
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		coding := named(codings[int(which)%len(codings)])
		var out sink
		if err := Copy(&out, body{bytes.NewReader(b)}, NewStream(set), []string{coding}, noted, nil); err != nil {
			return
		}
		if got := out.all(); len(got) > 0 && strings.Contains(unpack(t, coding, got), secret) {
			t.Fatalf("%s: the secret is left", coding)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	set := New([]string{secret, "sk-ant-0123456789abcdefghij"})
	for name, text := range map[string]string{
		"json": strings.Repeat(`{"id": 12345, "name": "a \"name\"", "url": "https://example.com/a%20b?c=d"}`+"\n", 500), "base64": string(pack(b, "gzip", strings.Repeat("x", 1<<20)))[:0] + strings.Repeat("YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXo0", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			s, out, in := NewStream(set), []byte(nil), []byte(text)
			for b.Loop() {
				out = s.Append(out[:0], in)
			}
		})
	}
}
