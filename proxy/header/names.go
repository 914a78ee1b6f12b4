package header

import (
	"bytes"
	"strings"

	"boxgate/relay/h1"
	"boxgate/rule"
)

// IsSet reports whether the gateway sets the header itself, so that the box's field of that name must be dropped.
func IsSet[S []byte | string](name S, set []rule.Field) bool {
	for i := range set {
		if h1.IsVariant(name, set[i].Name) {
			return true
		}
	}
	return false
}

// listsSet reports whether a list of field names, as in Trailer, contains one the gateway sets.
func listsSet(list []byte, set []rule.Field) bool {
	for name := range bytes.SplitSeq(list, []byte(",")) {
		if IsSet(bytes.TrimSpace(name), set) {
			return true
		}
	}
	return false
}

// offersHTTP3 reports whether an Alt-Svc value (RFC 7838) would make the client switch to QUIC, past the proxy.
func offersHTTP3[S []byte | string](value S) bool {
	v := strings.ToLower(string(value))
	for entry := range strings.SplitSeq(v, ",") {
		id, _, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if strings.HasPrefix(id, "h3") || strings.HasPrefix(id, "quic") || strings.HasPrefix(id, "hq") || strings.Contains(id, "%") {
			return true
		}
	}
	return false
}

// passes reports whether a field neither frames the message nor belongs to one hop.
func passes(f *h1.Field, named func([]byte) bool) bool {
	return (f.Kind == h1.Other || f.Kind == h1.AltSvc) && !named(f.Name)
}
