package scrub

// Stream masks one text that arrives in chunks. The result does not depend on how it is split. It buffers only a tail
// that could be the beginning of a form, at most the length of the longest form. Not safe for concurrent use.
type Stream struct {
	own     *Set // the set of NewStream
	latest  *Set // the set that superseded own when last checked
	set     *Set // own and latest combined
	tail    []byte
	covered int // leading bytes of held that belong to a form begun before them
}

// NewStream returns a stream that masks the secrets of a set, which may be nil.
func NewStream(s *Set) *Stream { return &Stream{own: s, latest: s, set: s} }

// Append takes the next chunk of the text and appends the decided bytes to dst.
func (s *Stream) Append(dst, part []byte) []byte {
	if s.own == nil {
		return append(dst, part...)
	}
	start := len(dst)
	dst = append(append(dst, s.tail...), part...)
	decided, covered, _ := s.currentSet().scan(dst[start:], s.covered, false)
	s.tail = append(s.tail[:0], dst[start+decided:]...)
	s.covered = covered
	return dst[:start+decided]
}

// End appends the buffered tail: the text is complete. The stream is then ready for another text.
func (s *Stream) End(dst []byte) []byte {
	if len(s.tail) == 0 {
		return dst
	}
	start := len(dst)
	dst = append(dst, s.tail...)
	s.currentSet().scan(dst[start:], s.covered, true)
	s.tail, s.covered = s.tail[:0], 0
	return dst
}

// Held returns the number of buffered bytes.
func (s *Stream) Held() int { return len(s.tail) }
