package policy

import (
	"strings"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Signing says how the gateway signs the requests of a header rule, with keys that the box does not have. At most one
// of its fields is set; the zero Signing signs nothing.
type Signing struct {
	AWS  *AWSSigning
	HMAC *HMACSigning
}

// Signs reports whether requests are signed.
func (s Signing) Signs() bool { return s.AWS != nil || s.HMAC != nil }

// Sets reports whether a signature sets the header, or removes that of the client.
func (s Signing) Sets(name string) bool {
	switch {
	case s.AWS != nil:
		switch match.FoldHeader(name) {
		case "authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256":
			return true
		}
	case s.HMAC != nil:
		return match.FoldHeader(name) == match.FoldHeader(s.HMAC.Header) || match.FoldHeader(name) == match.FoldHeader(s.HMAC.Timestamp)
	}
	return false
}

// Key is a value that signs, and is not sent: a literal, or a secret of the operator by name.
type Key struct {
	Value  name.Secret // the literal; empty when Source is set
	Source string      // name of a secret in the gateway's configuration; "" for a literal
}

// AWSSigning is AWS Signature Version 4. The first region and service are used unless there are others: then those that
// the request's own credential scope names, which must be among them.
type AWSSigning struct {
	Credentials Key // see [ParseAWSCredentials]
	Regions     []string
	Services    []string
}

// HMACSigning is a signature by HMAC-SHA256, in a header, of a text that is made of the request.
type HMACSigning struct {
	Key       Key
	Header    string // canonical form
	Format    string // of the header's value: {signature} and {timestamp} are replaced
	Encoding  string // of the signature: "hex" or "base64"
	Template  string // what is signed: {timestamp}, {method}, {host}, {path}, {query}, {target}, {body}, {body_sha256} are replaced
	Timestamp string // the header that the time is sent in, canonical form; "" if it is not, or in Header
	Clock     string // format of the time: "unix", "unix_ms" or "rfc3339"
}

// Placeholders of an [HMACSigning].
const (
	SignTimestamp = "{timestamp}"
	SignSignature = "{signature}"
	SignBody      = "{body}"
	SignBodyHash  = "{body_sha256}"
)

// NeedsBody reports whether the whole body takes part in the signature.
func (s *HMACSigning) NeedsBody() bool {
	return strings.Contains(s.Template, SignBody) || strings.Contains(s.Template, SignBodyHash)
}
