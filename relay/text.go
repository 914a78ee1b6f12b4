package relay

import (
	"net/http"

	"boxgate/relay/h1"
)

// KeepText is the length up to which a text of one request is kept for the next, which often has the same.
const KeepText = 512

// Recall returns b as a string, which is *last if that is the same and becomes *last if it is short.
func Recall(last *string, b []byte) string {
	if string(b) == *last {
		return *last
	}
	s := string(b)
	if len(s) <= KeepText {
		*last = s
	}
	return s
}

// Method returns a method as a string, without allocating for the common ones.
func Method(m []byte) string {
	switch string(m) {
	case http.MethodGet:
		return http.MethodGet
	case http.MethodPost:
		return http.MethodPost
	case http.MethodHead:
		return http.MethodHead
	case http.MethodPut:
		return http.MethodPut
	}
	return string(m)
}

// Values returns the values of a field, whose name is given in lower case, one for each of its lines.
func Values(fields []h1.Field, name string) (values []string) {
	for i := range fields {
		if f := &fields[i]; h1.EqualFold(f.Name, name) {
			values = append(values, string(f.Value))
		}
	}
	return values
}
