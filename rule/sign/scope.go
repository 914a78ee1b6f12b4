package sign

import (
	"net/url"
	"slices"
	"strings"
)

// scope is the region and service of the client's signature; empty if it has none.
type scope struct{ region, service string }

// awsScope returns the scope of the client's own signature.
func (r *request) awsScope() (scope, error) {
	credentials := r.Values("Authorization")
	_, query, _ := strings.Cut(r.Target, "?")
	for pair := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(pair, "="); presigned(name) && strings.EqualFold(unescaped(name), "X-Amz-Credential") {
			credentials = append(credentials, "Credential="+unescaped(value))
		}
	}
	if len(credentials) > 1 {
		return scope{}, refuse("The request has several signatures.")
	}
	if len(credentials) == 0 {
		return scope{}, nil
	}
	_, rest, found := strings.Cut(credentials[0], "Credential=")
	if !found {
		return scope{}, nil
	}
	rest, _, _ = strings.Cut(rest, ",")
	parts := strings.Split(strings.TrimSpace(rest), "/")
	if len(parts) != 5 || parts[4] != "aws4_request" {
		return scope{}, nil
	}
	return scope{parts[2], parts[3]}, nil
}

// within returns the region and service to sign for: the client's, if the rule lists several and contains them.
func (s scope) within(e *awsEffect) (region, service string, err error) {
	region, ok := choose(e.regions, s.region)
	if !ok {
		return "", "", refuse("The rule of this host does not sign for the region of the request, or the request names none.")
	}
	service, ok = choose(e.services, s.service)
	if !ok {
		return "", "", refuse("The rule of this host does not sign for the service of the request, or the request names none.")
	}
	return region, service, nil
}

func choose(allowed []string, own string) (string, bool) {
	if len(allowed) == 1 {
		return allowed[0], true
	}
	return own, slices.Contains(allowed, own)
}

// withoutPresigned returns a target without the query parameters of a presigned URL. The rest is unchanged byte for byte. A query that
// servers interpret differently is refused, since the signature covers one interpretation.
func withoutPresigned(target string) (string, error) {
	path, query, found := strings.Cut(target, "?")
	if !found {
		return target, nil
	}
	if _, err := url.ParseQuery(query); err != nil {
		return "", refuse("The query of the request cannot be signed: it has a semicolon or a malformed escape.")
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		if ofVersion2(name) {
			return "", refuse("The query of the request has a signature of version 2, which would stand beside the gateway's.")
		}
		if !presigned(name) {
			kept = append(kept, pair)
		}
	}
	if len(kept) == 0 {
		return path, nil
	}
	return path + "?" + strings.Join(kept, "&"), nil
}

// presigned reports whether a query parameter, in any spelling, belongs to the signature of a presigned URL.
func presigned(name string) bool {
	switch strings.ToLower(unescaped(name)) {
	case "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature",
		"x-amz-security-token", "x-amz-content-sha256", "x-amz-region-set", "x-amz-s3session-token":
		return true
	}
	return false
}

// ofVersion2 reports whether a query parameter belongs to a signature of version 2, which some services still accept. Others such as
// "Signature" have no effect without these.
func ofVersion2(name string) bool {
	switch strings.ToLower(unescaped(name)) {
	case "awsaccesskeyid", "signatureversion", "signaturemethod":
		return true
	}
	return false
}

func unescaped(s string) string {
	if plain, err := url.QueryUnescape(s); err == nil {
		return plain
	}
	return s
}
