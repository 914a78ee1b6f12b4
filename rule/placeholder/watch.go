package placeholder

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"boxgate/proxy/scrub"
)

// Watch searches a body for tokens while it is forwarded, without buffering. It does not forward the chunk that contains the
// end of a token, so that no server receives a complete token. The zero Watch is off. Not safe for concurrent use, except
// Close.
type Watch struct {
	on    bool
	tail  []byte // the last bytes, where a token may have begun
	coded *coded // nil if the body is not compressed
}

// NewWatch returns a watch for request bodies of a box. It is on if the box has placeholders.
func NewWatch(on bool) Watch { return Watch{on: on} }

// Look checks the next chunk of the body. It returns [ErrLate] if a token ends in it, and [ErrCoded] if the body cannot be
// decoded.
func (w *Watch) Look(piece []byte) error {
	if !w.on || len(piece) == 0 {
		return nil
	}
	if w.coded != nil {
		if err := w.coded.look(piece); err != nil {
			return err
		}
	}
	return w.plain(piece)
}

// Decodes reports whether the body is decoded to be searched.
func (w *Watch) Decodes() bool { return w.coded != nil }

// End finishes the search after the last chunk. The end of the body must not be forwarded before.
func (w *Watch) End() error {
	if !w.on || w.coded == nil {
		return nil
	}
	return w.coded.endBody()
}

// Close ends a search. No other call returns nil after it.
func (w *Watch) Close() {
	if w.coded != nil {
		w.coded.close()
	}
}

func (w *Watch) plain(piece []byte) error {
	const most = TokenLen - 1
	if len(w.tail) > 0 {
		border := append(w.tail, piece[:min(len(piece), most)]...)
		if start, _ := FindTokenBytes(border); start >= 0 {
			return ErrLate
		}
		w.tail = border
	}
	if start, _ := FindTokenBytes(piece); start >= 0 {
		return ErrLate
	}
	if len(piece) >= most || len(w.tail) == 0 {
		w.tail = append(w.tail[:0], piece[max(0, len(piece)-most):]...)
		return nil
	}
	if over := len(w.tail) - most; over > 0 {
		w.tail = append(w.tail[:0], w.tail[over:]...)
	}
	return nil
}

// Errors of compressed bodies.
var (
	ErrCoded   = errors.New("the body is not valid in its content coding, so it cannot be searched for placeholders")
	errExpands = fmt.Errorf("%w: it expands too much", ErrCoded)
)

// Expansion bounds the expansion of a compressed body.
var Expansion = scrub.Limit{Between: 4 << 20, Plain: 4 << 20, Times: 100}

// coded searches a compressed body. A goroutine decodes it, and each part is forwarded when the decoder asks for the next one. Decoders buffer
// output, so earlier parts may have been forwarded when a token is found, but the end of the body is only forwarded after all of it was decoded.
type coded struct {
	parts  chan []byte
	hungry chan struct{}
	done   chan struct{}
	err    error // of done: nil after the end of the body
	quit   chan struct{}
	ending sync.Once // closes parts
	once   sync.Once // closes quit

	part  []byte // unread part of the current one
	in    int64  // of the body so far
	over  bool   // there are no more parts
	asked bool   // the decoder waits for a part; for the caller's goroutine only
}

// NewCodedWatch is [NewWatch] for a body with codings, of a box that has placeholders. The caller has reserved [scrub.Memory]. start runs the decoder in a
// goroutine, which ends after [Watch.Close], which must follow.
func NewCodedWatch(codings []string, start func(decode func())) Watch {
	d := &coded{parts: make(chan []byte), hungry: make(chan struct{}), done: make(chan struct{}), quit: make(chan struct{})}
	start(func() {
		defer close(d.done)
		d.err = ErrCoded // should there be a panic
		d.err = d.search(codings)
	})
	return Watch{on: true, coded: d}
}

func (d *coded) search(codings []string) error {
	limit := Expansion
	limit.Stop = d.stopped
	in, err := scrub.NewDecoder(codings, d, limit)
	if err != nil {
		return d.flaw(err)
	}
	plain, buf := Watch{on: true}, make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if err := plain.Look(buf[:n]); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return d.flaw(err)
		}
	}
}

// stopped ends the decoding after the watch was closed.
func (d *coded) stopped() error {
	select {
	case <-d.quit:
		return io.ErrUnexpectedEOF
	default:
		return nil
	}
}

// flaw maps an error of a decoder. An empty body is valid in every coding.
func (d *coded) flaw(err error) error {
	switch {
	case d.in == 0 && errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, scrub.ErrExpands):
		return errExpands
	}
	return ErrCoded
}

// Read gives the decoder the current part, and waits for the next one.
func (d *coded) Read(p []byte) (int, error) {
	for len(d.part) == 0 {
		if d.over {
			return 0, io.EOF
		}
		select {
		case d.hungry <- struct{}{}:
		case <-d.quit:
			return 0, io.ErrUnexpectedEOF
		}
		select {
		case part, more := <-d.parts:
			d.over = !more
			d.part = part
			d.in += int64(len(part))
		case <-d.quit:
			return 0, io.ErrUnexpectedEOF
		}
	}
	n := copy(p, d.part)
	d.part = d.part[n:]
	return n, nil
}

// look passes a part to the decoder, and returns when it asks for the next one or has failed.
func (d *coded) look(part []byte) error {
	if ended, err := d.await(); ended {
		if err == nil {
			err = ErrCoded // data after the end of the coding
		}
		return err
	}
	select {
	case d.parts <- part:
		d.asked = false
	case <-d.quit:
		return ErrCoded
	}
	ended, err := d.await()
	if ended && err == nil && len(d.part) > 0 {
		err = ErrCoded
	}
	return err
}

// await waits until the decoder asks for a part, or has ended.
func (d *coded) await() (ended bool, err error) {
	if d.asked {
		return false, nil
	}
	select {
	case <-d.hungry:
		d.asked = true
		return false, nil
	case <-d.done:
		return true, d.err
	case <-d.quit:
		return true, ErrCoded
	}
}

// endBody signals the end of the body to the decoder, and returns its result.
func (d *coded) endBody() error {
	if ended, err := d.await(); ended {
		return err
	}
	d.asked = false // later calls return the same result
	d.ending.Do(func() { close(d.parts) })
	select {
	case <-d.done:
		return d.err
	case <-d.quit:
		return ErrCoded
	}
}

func (d *coded) close() { d.once.Do(func() { close(d.quit) }) }
