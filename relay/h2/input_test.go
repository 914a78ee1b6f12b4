package h2

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzInput: reads return the data of the source, whatever the sizes of both sides' reads, and wait is called before each read
// of the source.
func FuzzInput(f *testing.F) {
	f.Add([]byte("some frames"), []byte{9, 3, 64}, true, true)
	f.Add(bytes.Repeat([]byte("x"), 40<<10), []byte{9, 255, 250, 1}, true, false)
	f.Add(bytes.Repeat([]byte("y"), 3<<10), []byte{9, 200}, false, false)
	f.Fuzz(func(t *testing.T, data, sizes []byte, busy, slow bool) {
		if len(sizes) == 0 {
			return
		}
		waits := 0
		source := &counting{Reader: bytes.NewReader(data), waits: &waits, t: t}
		if slow {
			source.Reader = iotest.OneByteReader(source.Reader)
		}
		var in Input
		in.Open(source, func() bool { waits++; return busy })
		defer in.Close()
		var got []byte
		for i := 0; ; i++ {
			size := int(sizes[i%len(sizes)]) * 40
			if part := in.Arrived(size); part != nil {
				got = append(got, part...)
				continue
			}
			p := make([]byte, size)
			n, err := in.Read(p)
			if got = append(got, p[:n]...); errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if size == 0 {
				sizes[i%len(sizes)] = 1
			}
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("%d bytes of %d", len(got), len(data))
		}
	})
}

// counting fails a read that was not announced.
type counting struct {
	io.Reader
	waits *int
	t     *testing.T
}

func (c *counting) Read(p []byte) (int, error) {
	if *c.waits--; *c.waits != 0 {
		c.t.Error("a read that was not announced")
	}
	return c.Reader.Read(p)
}
