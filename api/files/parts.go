package files

import (
	"errors"
	"io"
	"mime/multipart"
	"net/http"
)

// maxPartHead bounds the head of a part of a form, and what may be before it, in bytes. [multipart.Reader] keeps a head in memory, of up to
// 10 MiB, which no quota counts.
const maxPartHead = 64 << 10

var errLongHead = errors.New("a part of the form has a head of more than 64 KiB")

// Parts reads a form whose parts may be of any size, one part after the other. Use [NewParts]. Its methods must not be called concurrently.
type Parts struct {
	form *multipart.Reader
	body *headReader
	last *multipart.Part
}

// NewParts returns the parts of the body of a request. A body that is no form is an error.
func NewParts(r *http.Request) (*Parts, error) {
	body := &headReader{ReadCloser: r.Body}
	r.Body = body
	form, err := r.MultipartReader()
	return &Parts{form: form, body: body}, err
}

// Next returns the next part, after skipping the rest of the previous one, or [io.EOF] after the last.
func (p *Parts) Next() (*multipart.Part, error) {
	if p.last != nil {
		if _, err := io.Copy(io.Discard, p.last); err != nil {
			return nil, err
		}
	}
	p.body.inHead, p.body.left = true, maxPartHead
	part, err := p.form.NextPart()
	p.body.inHead, p.last = false, part
	return part, err
}

// headReader is a body that limits the bytes read while a head is expected.
type headReader struct {
	io.ReadCloser
	inHead bool
	left   int
}

// Read implements [io.Reader].
func (h *headReader) Read(b []byte) (int, error) {
	if !h.inHead {
		return h.ReadCloser.Read(b)
	}
	if h.left == 0 {
		return 0, errLongHead
	}
	n, err := h.ReadCloser.Read(b[:min(len(b), h.left)])
	h.left -= n
	return n, err
}
