package config

import (
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// unforwardable are request fields that no configuration passes from a visitor to a box: the gateway sets them itself,
// they concern a single connection, or other settings govern them. Names that begin with "proxy-" belong to them too.
var unforwardable = []string{
	"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "forwarded",
	"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
	"host", "content-length", "expect", "authorization", "cookie", "referer", "x-box-api-key",
}

func (i Ingress) checkForwardFields(fail func(key, format string, args ...any)) {
	const key = "ingress.forward_fields"
	seen := map[string]bool{}
	for _, name := range i.ForwardFields {
		lower := strings.ToLower(name)
		spelled := strings.Map(normalizeFieldRune, lower)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			fail(key, "%q is not the name of a header field such as X-Auth-Token; there are no patterns", name)
		case slices.Contains(unforwardable, spelled) || strings.HasPrefix(spelled, "proxy-"):
			fail(key, "%q cannot be handed on as a visitor sent it; remove it from the list", name)
		case seen[lower]:
			fail(key, "%q is listed twice; keep one", name)
		}
		seen[lower] = true
	}
}

// normalizeFieldRune maps everything but letters and digits to "-", as some servers do when they read field names.
func normalizeFieldRune(r rune) rune {
	if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
		return r
	}
	return '-'
}
