package header

import (
	"boxgate/internal/h1"
	"boxgate/rule"
)

// AppendLastChunk appends the last chunk with the trailer. Fields that frame or route, and those that repeat a header
// in set, are dropped.
func AppendLastChunk(dst []byte, trailers []h1.Field, set []rule.Field) []byte {
	return h1.AppendLastChunk(dst, trailers, func(name []byte) bool { return IsSet(name, set) })
}
