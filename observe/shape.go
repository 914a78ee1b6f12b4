package observe

import "strings"

const (
	maxSegments = 8  // of a shape
	maxSegment  = 32 // bytes of a segment that is a word
)

// Shape returns the shape of a path: segments that look like numbers or identifiers are replaced by "{n}" and "{id}", and
// segments after the eighth by "...". /repos/acme/site/issues/17 has the shape /repos/acme/site/issues/{n}.
//
// It keeps the number of observations of an ordinary API small. A box can still make up any number of shapes, up to
// [MaxPerBox].
func Shape(path string) string {
	if len(path) <= maxSegment && !strings.ContainsAny(path, "0123456789") && strings.Count(path, "/") <= maxSegments {
		return path
	}
	var b strings.Builder
	rest := strings.TrimPrefix(path, "/")
	for n := 0; ; n++ {
		if n == maxSegments {
			b.WriteString("/...")
			break
		}
		segment, after, more := strings.Cut(rest, "/")
		b.WriteByte('/')
		b.WriteString(shapeOfSegment(segment))
		if !more {
			break
		}
		rest = after
	}
	return b.String()
}

// shapeOfSegment replaces a segment of digits only, and one that is too long for a word or mixes many digits with other
// characters. Versions such as v1 and names with one number stay.
func shapeOfSegment(s string) string {
	digits, groups, in := 0, 0, false
	for i := range len(s) {
		is := s[i] >= '0' && s[i] <= '9'
		if is {
			digits++
		}
		if is && !in {
			groups++
		}
		in = is
	}
	switch {
	case digits > 0 && digits == len(s):
		return "{n}"
	case len(s) > maxSegment, digits >= 4 && groups >= 2, digits >= 6:
		return "{id}"
	}
	return s
}
