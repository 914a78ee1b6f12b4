package placeholder

import (
	"boxgate/policy"
)

// Watch searches a body for tokens as it passes. Nothing is buffered: the chunk in which a token ends is not forwarded,
// so no server receives a whole one. The zero value searches for nothing. Not safe for concurrent use.
type Watch struct {
	on   bool
	tail []byte // the last bytes, where a token may have begun
}

// NewWatch returns a watch for request bodies of a box that has placeholders.
func NewWatch(c *policy.Compiled) Watch { return Watch{on: c.HasPlaceholders()} }

// Look checks the next chunk of the body. It returns [ErrLate] if a token ends in it.
func (w *Watch) Look(piece []byte) error {
	const most = policy.TokenLen - 1
	if !w.on || len(piece) == 0 {
		return nil
	}
	if len(w.tail) > 0 {
		border := append(w.tail, piece[:min(len(piece), most)]...)
		if start, _ := policy.FindTokenBytes(border); start >= 0 {
			return ErrLate
		}
		w.tail = border
	}
	if start, _ := policy.FindTokenBytes(piece); start >= 0 {
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
