package header

import (
	"net/http"
)

// SizeFactor is the size of a head parsed into a map of fields, as a multiple of its length.
const SizeFactor = 3

// Size returns about how long fields are when written as HTTP/1.1.
func Size(h http.Header) (n int) {
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + 4
		}
	}
	return n
}
