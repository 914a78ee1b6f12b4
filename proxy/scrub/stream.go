package scrub

// Stream masks one text that arrives in parts. However it is divided, the same comes out. It holds back a tail that could
// be the beginning of a form, at most the length of the longest form, and nothing else. It is not safe for concurrent use.
type Stream struct {
	own     *Set // that the stream was made with
	latest  *Set // that superseded it when it was looked at last
	set     *Set // what is looked for: both
	held    []byte
	covered int // of held, the bytes at its beginning that a form covers which began before
}

// NewStream returns a stream in which the secrets of a set, which may be nil, are masked.
func NewStream(s *Set) *Stream { return &Stream{own: s, latest: s, set: s} }

// Append takes the next part of the text and appends to dst what is decided by now.
func (s *Stream) Append(dst, part []byte) []byte {
	if s.own == nil {
		return append(dst, part...)
	}
	start := len(dst)
	dst = append(append(dst, s.held...), part...)
	decided, covered, _ := s.now().scan(dst[start:], s.covered, false)
	s.held = append(s.held[:0], dst[start+decided:]...)
	s.covered = covered
	return dst[:start+decided]
}

// End appends what was held back: the text is complete. The stream is then ready for another text.
func (s *Stream) End(dst []byte) []byte {
	if len(s.held) == 0 {
		return dst
	}
	start := len(dst)
	dst = append(dst, s.held...)
	s.now().scan(dst[start:], s.covered, true)
	s.held, s.covered = s.held[:0], 0
	return dst
}

// Held returns how many bytes are held back.
func (s *Stream) Held() int { return len(s.held) }
