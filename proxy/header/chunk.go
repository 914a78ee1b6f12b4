package header

import (
	"boxgate/relay/h1"
	"boxgate/rule"
)

// AppendLastChunk appends the last chunk with the trailers. It drops fields that frame or route or that repeat a
// header in set.
func AppendLastChunk(dst []byte, trailers []h1.Field, set []rule.Field) []byte {
	return h1.AppendLastChunk(dst, trailers, func(name []byte) bool { return IsSet(name, set) })
}
