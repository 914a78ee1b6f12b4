package stream

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
)

// Raw writes the raw form of a command's output, as the SDK parses it: the output of both streams as it is, then one event with the result.
// The SDK takes the first line "event: exit" or "event: error" in the output for that event, so Raw ends such a line of the output with
// CR LF: it then looks the same, and is no event. Not safe for concurrent use.
type Raw struct {
	w    io.Writer
	zip  *stored // nil: the output is not encoded
	tail []byte  // the last bytes of the output, as many as the longest marker has
	sent int64   // bytes before the encoding
}

// markers begin the events that end the raw form, each followed by a line feed.
var markers = []string{"event: exit", "event: error"}

// longestMarker is the length of the longest of the markers.
const longestMarker = len("event: error")

// NewRaw returns a Raw that writes to w. In the encoding gzip it can keep a silent connection alive.
func NewRaw(w io.Writer, zip bool) *Raw {
	r := &Raw{w: w}
	if zip {
		r.zip = &stored{w: w}
	}
	return r
}

// Output writes output of the command.
func (r *Raw) Output(b []byte) error { return r.write(r.guard(b)) }

func (r *Raw) write(b []byte) error {
	r.sent += int64(len(b))
	if r.zip != nil {
		return r.zip.write(b)
	}
	_, err := r.w.Write(b)
	return err
}

// guard returns output without markers. It returns b itself if there are none.
func (r *Raw) guard(b []byte) []byte {
	var out []byte
	from := 0
	for at := 0; ; at++ {
		n := bytes.IndexByte(b[at:], '\n')
		if n < 0 {
			break
		}
		if at += n; r.marked(b[:at]) {
			out = append(append(out, b[from:at]...), '\r')
			from = at
		}
	}
	r.tail = lastBytes(r.tail, b)
	if out == nil {
		return b
	}
	return append(out, b[from:]...)
}

// marked reports whether the output ends with a marker after b.
func (r *Raw) marked(b []byte) bool {
	end := string(lastBytes(r.tail, b))
	return slices.ContainsFunc(markers, func(m string) bool { return strings.HasSuffix(end, m) })
}

// lastBytes returns the last bytes of tail and b together, as many as the longest marker has.
func lastBytes(tail, b []byte) []byte {
	if len(b) >= longestMarker {
		return slices.Clone(b[len(b)-longestMarker:])
	}
	both := slices.Concat(tail, b)
	return both[max(0, len(both)-longestMarker):]
}

// piece is the size in bytes of the chunks that Node's zlib decodes into.
const piece = 16 << 10

// End writes the event with the result, and ends the encoding.
func (r *Raw) End(name string, data any) error {
	event := Event(name, data)
	if r.zip == nil {
		return r.write(event)
	}
	// The SDK loses the result if the line of the marker ends one piece and the data begins the next. The output then ends with more line
	// feeds, so that the marker's own is in the next piece. They pass the guard, since the output may end with a marker that lacks one.
	marker := int64(bytes.IndexByte(event, '\n') + 1)
	next := (r.sent + marker + piece - 1) / piece * piece
	if next < r.sent+int64(len(event)) {
		event = append(slices.Clone(r.guard(bytes.Repeat([]byte("\n"), int(next-r.sent-marker+1)))), event...)
	}
	if err := r.write(event); err != nil {
		return err
	}
	return r.zip.close()
}

// Alive sends bytes that are no output. It does nothing without an encoding, because each byte then is output.
func (r *Raw) Alive() error {
	if r.zip == nil {
		return nil
	}
	return r.zip.write(nil)
}

// stored writes the encoding gzip (RFC 1952) in blocks that are not compressed (RFC 1951, section 3.2.4), which takes no memory: a block
// without content keeps a connection alive. The package compress/gzip needs most of a megabyte for each stream.
type stored struct {
	w     io.Writer
	begun bool
	sum   uint32
	size  uint32 // modulo 2^32
}

// write writes b in one block or several; without content in one.
func (s *stored) write(b []byte) error {
	for {
		n := min(len(b), math.MaxUint16)
		if err := s.block(0, b[:n]); err != nil {
			return err
		}
		if b = b[n:]; len(b) == 0 {
			return nil
		}
	}
}

// block writes a block, and before the first one the header. last is 1 for the last block.
func (s *stored) block(last byte, b []byte) error {
	var head []byte
	if !s.begun {
		s.begun = true
		head = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255} // deflate, no time, system unknown
	}
	head = append(head, last)
	head = binary.LittleEndian.AppendUint16(head, uint16(len(b)))
	head = binary.LittleEndian.AppendUint16(head, ^uint16(len(b)))
	s.sum, s.size = crc32.Update(s.sum, crc32.IEEETable, b), s.size+uint32(len(b))
	if last == 1 {
		head = binary.LittleEndian.AppendUint32(head, s.sum)
		head = binary.LittleEndian.AppendUint32(head, s.size)
	}
	if _, err := s.w.Write(head); err != nil || len(b) == 0 {
		return err
	}
	_, err := s.w.Write(b)
	return err
}

// close ends the encoding.
func (s *stored) close() error { return s.block(1, nil) }

// AcceptsGzip reports whether the client accepts the encoding gzip by name (RFC 9110, section 12.5.3).
func AcceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(part), ";")
		if strings.TrimSpace(name) == "gzip" {
			weight = strings.ReplaceAll(weight, " ", "")
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || !strings.HasPrefix(weight, "q=")
		}
	}
	return false
}
