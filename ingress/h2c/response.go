package h2c

import (
	"errors"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/net/http2/hpack"

	"boxgate/relay/h1"
	"boxgate/relay/h2/upstream"
)

// response converts a response over HTTP/2 to the form of HTTP/1.1.
type response struct {
	head    bool // this is the response to a HEAD request
	begun   bool // the final head has arrived
	chunked bool
	ended   bool
	out     []byte // not yet read
	pos     int
}

// read fills b with the bytes that have arrived. It returns 0 and no error if there are none yet.
func (r *response) read(s *upstream.Stream, b []byte) (int, error) {
	if r.pos == len(r.out) {
		r.out, r.pos = r.out[:0], 0
		if err := r.more(s); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.out[r.pos:])
	if r.pos += n; n == 0 && r.ended {
		return 0, io.EOF
	}
	return n, nil
}

// more appends the data that has arrived to the output.
func (r *response) more(s *upstream.Stream) error {
	switch {
	case r.ended:
		return io.EOF
	case !r.begun:
		h, ok, err := s.HeadArrived()
		if err != nil || !ok {
			return err
		}
		r.begin(&h)
		return nil
	}
	var piece [8 << 10]byte
	n, err := s.ReadArrived(piece[:])
	switch {
	case n > 0 && r.chunked:
		r.out = h1.AppendChunk(r.out, piece[:n])
	case n > 0:
		r.out = append(r.out, piece[:n]...)
	case errors.Is(err, io.EOF):
		r.appendBodyEnd(s.Trailers())
	case err != nil:
		return errors.Join(errReset, err)
	}
	return nil
}

// begin appends a head. A body is sent in chunks unless its length is known and no trailers are announced: only chunks can
// carry trailers.
func (r *response) begin(h *upstream.Head) {
	r.out = h1.AppendStatus(r.out, h.Status, []byte(http.StatusText(h.Status)))
	bodiless := r.head || h.Interim() || h.Status == http.StatusNoContent || h.Status == http.StatusNotModified
	r.begun = !h.Interim()
	r.chunked = !bodiless && !h.End && (h.Length < 0 || announces(h.Fields))
	for i := range h.Fields {
		if f := &h.Fields[i]; f.Name != "content-length" {
			r.out = h1.AppendPair(r.out, f.Name, f.Value)
		}
	}
	switch {
	case r.chunked:
		r.out = append(r.out, "Transfer-Encoding: chunked\r\n"...)
	case h.Length >= 0:
		r.out = h1.AppendPair(r.out, "Content-Length", strconv.FormatInt(h.Length, 10))
	case !bodiless:
		r.out = append(r.out, "Content-Length: 0\r\n"...)
	}
	r.out = append(r.out, "\r\n"...)
	r.ended = r.begun && (bodiless || h.End)
}

// announces reports whether a head announces trailers.
func announces(fields []hpack.HeaderField) bool {
	for i := range fields {
		if fields[i].Name == "trailer" {
			return true
		}
	}
	return false
}

// appendBodyEnd appends the end of the body.
func (r *response) appendBodyEnd(trailers []hpack.HeaderField) {
	r.ended = true
	if !r.chunked {
		return
	}
	r.out = append(r.out, "0\r\n"...)
	for i := range trailers {
		r.out = h1.AppendPair(r.out, trailers[i].Name, trailers[i].Value)
	}
	r.out = append(r.out, "\r\n"...)
}
