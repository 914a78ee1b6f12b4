package header

import (
	"strconv"

	"boxgate/policy"
	"boxgate/proxy/h1"
)

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

// AppendLastChunk appends the last chunk with the trailer. Fields that frame or route, and those that repeat a header
// in set, are dropped.
func AppendLastChunk(dst []byte, trailers []h1.Field, set []policy.Header) []byte {
	dst = append(dst, "0\r\n"...)
	for i := range trailers {
		if f := &trailers[i]; !f.Forbidden() && !IsSet(f.Name, set) {
			dst = AppendField(dst, f)
		}
	}
	return append(dst, "\r\n"...)
}
