package header

import (
	"net/http"
)

// SizeFactor is what a head takes as a map of fields, in multiples of its length.
const SizeFactor = 3

// Size is about how long fields are, written as HTTP/1.1.
func Size(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
