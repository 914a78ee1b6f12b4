package proxy

import (
	"io"

	"boxgate/policy"
)

// tokenWatch looks for tokens in a body as it passes. Nothing is held back: the piece in which a token ends does not go
// on, so that no server receives a whole one. The zero value looks for nothing. It is for one goroutine.
type tokenWatch struct {
	on   bool
	tail []byte // the last bytes, in which a token may have begun
}

// watches returns a watch for the bodies of a box that has placeholders.
func watches(c *policy.Compiled) tokenWatch { return tokenWatch{on: c.HasPlaceholders()} }

// look takes the next piece of the body. The error is errLateToken if a token ends in it.
func (w *tokenWatch) look(piece []byte) error {
	const most = policy.TokenLen - 1
	if !w.on || len(piece) == 0 {
		return nil
	}
	if len(w.tail) > 0 {
		border := append(w.tail, piece[:min(len(piece), most)]...)
		if start, _ := policy.FindTokenBytes(border); start >= 0 {
			return errLateToken
		}
		w.tail = border
	}
	if start, _ := policy.FindTokenBytes(piece); start >= 0 {
		return errLateToken
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

// watchedBody is the body of a stream as it is looked through.
type watchedBody struct {
	io.ReadCloser
	st *stream
}

// Read fails where a token ends.
func (b watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if leak := b.st.watched(p[:n]); leak != nil {
		return 0, leak
	}
	return n, err
}

// watched looks through the next piece of the stream's body.
func (st *stream) watched(piece []byte) error {
	err := st.watch.look(piece)
	if err != nil {
		st.leaked.Store(true)
	}
	return err
}
