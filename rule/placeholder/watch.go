package placeholder

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
