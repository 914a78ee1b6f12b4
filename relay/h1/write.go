package h1

import "strconv"

// AppendStatus appends a status line.
func AppendStatus(dst []byte, status int, reason []byte) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(status), 10)
	dst = append(dst, ' ')
	dst = append(dst, reason...)
	return append(dst, "\r\n"...)
}

// AppendField appends one field line.
func AppendField(dst []byte, f *Field) []byte {
	dst = append(dst, f.Name...)
	dst = append(dst, ": "...)
	dst = append(dst, f.Value...)
	return append(dst, "\r\n"...)
}

// AppendPair appends one field line. Neither part is checked.
func AppendPair(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...)
}

// AppendChunk appends content as one chunk.
func AppendChunk(dst, content []byte) []byte {
	if len(content) == 0 {
		return dst // an empty chunk would end the body
	}
	dst = strconv.AppendUint(dst, uint64(len(content)), 16)
	dst = append(dst, "\r\n"...)
	dst = append(dst, content...)
	return append(dst, "\r\n"...)
}

// AppendLastChunk appends the last chunk with the trailer. It drops fields that frame or route, and fields that drop
// selects; drop may be nil.
func AppendLastChunk(dst []byte, trailers []Field, drop func(name []byte) bool) []byte {
	dst = append(dst, "0\r\n"...)
	for i := range trailers {
		if f := &trailers[i]; !f.Forbidden() && (drop == nil || !drop(f.Name)) {
			dst = AppendField(dst, f)
		}
	}
	return append(dst, "\r\n"...)
}

// IsVariant reports whether a server might read name as the field want: they differ only in case and in "_" instead of "-".
func IsVariant[S []byte | string](name S, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i := range len(want) {
		if plain(name[i]) != plain(want[i]) {
			return false
		}
	}
	return true
}

func plain(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c + 'a' - 'A'
	case c == '_':
		return '-'
	}
	return c
}
