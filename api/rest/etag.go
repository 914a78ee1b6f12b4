package rest

import (
	"net/http"
	"strconv"
	"strings"

	"boxgate/api/problem"
)

// etag returns the entity tag of a version (RFC 9110, section 8.8.3).
func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

// IfMatch parses If-Match (RFC 9110, section 13.1.1). It returns nil if the header is absent or "*". A tag that this API
// never issues matches no version: the precondition fails, but the request is not malformed.
func IfMatch(r *http.Request) (*uint64, error) {
	values := r.Header.Values("If-Match")
	if len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "*" {
		return nil, nil
	}
	tag := strings.TrimSpace(values[0])
	if len(values) > 1 || len(tag) < 3 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return nil, problem.Refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3"`)
	}
	version, err := strconv.ParseUint(tag[1:len(tag)-1], 10, 64)
	if err != nil {
		return nil, problem.Refuse(http.StatusPreconditionFailed, `If-Match must be one ETag of this resource, such as "3"`)
	}
	return &version, nil
}
