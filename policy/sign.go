package policy

import (
	"encoding/json"
	"errors"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"boxgate/policy/document"
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

const (
	maxSigned      = 4 << 10 // length of a template or format
	maxSignedParts = 32      // names in a template: what stands for one may be as long as a head
)

// signing reads {"aws": …} or {"hmac": …}.
func (p *headerParser) signing(at string, v document.Value) (s Signing) {
	v.Fields(at, `{"aws": …} or {"hmac": …}`, &p.Problems, map[string]func(string, document.Value){
		"aws":  func(at string, v document.Value) { s.AWS = p.awsSigning(at, v) },
		"hmac": func(at string, v document.Value) { s.HMAC = p.hmacSigning(at, v) },
	})
	if v.Kind == document.Object && v.Has("aws") == v.Has("hmac") {
		p.Add(at, `needs one of "aws" and "hmac"`)
	}
	return s
}

func (p *headerParser) awsSigning(at string, v document.Value) *AWSSigning {
	s := &AWSSigning{}
	v.Fields(at, `an object of "credentials", "region" and "service"`, &p.Problems, map[string]func(string, document.Value){
		"credentials": func(at string, v document.Value) {
			s.Credentials = p.key(at, "credentials", v)
			if s.Credentials.Source != "" || s.Credentials.Value.Reveal() == "" {
				return
			}
			if _, err := ParseAWSCredentials(s.Credentials.Value); err != nil {
				p.Add(at, "%s", err)
			}
		},
		"region":  func(at string, v document.Value) { s.Regions = p.scopes(at, v) },
		"service": func(at string, v document.Value) { s.Services = p.scopes(at, v) },
	})
	p.required(at, v, "credentials", "region", "service")
	return s
}

// checkRewrites refuses what would be set twice, and places without placeholders.
func (p *headerParser) checkRewrites(at string, r *HeaderRule) {
	if r.Places != 0 && len(r.Placeholders) == 0 {
		p.Add(document.Pointer(at, "places"), "is for placeholders, and there are none")
	}
	for _, h := range r.Headers {
		if r.Sign.Sets(h.Name) {
			p.Add(document.Pointer(document.Pointer(at, "headers"), h.Name), "is set by the signature")
		}
	}
}

// key reads a value that signs.
func (p *headerParser) key(at, n string, v document.Value) Key {
	text := p.Value(at, n, v, false)
	if text.Source == "" && text.Literal.Reveal() == "" {
		p.Add(at, "the value of %s is empty", name.Quote(n))
	}
	return Key{Value: text.Literal, Source: text.Source}
}

// required adds a problem for each key that an object lacks.
func (p *headerParser) required(at string, v document.Value, keys ...string) {
	if v.Kind != document.Object {
		return
	}
	for _, key := range keys {
		if !v.Has(key) {
			p.Add(document.Pointer(at, key), "is missing")
		}
	}
}

// scopes reads a part of credential scopes: one, or a list of those that requests may choose from.
func (p *headerParser) scopes(at string, v document.Value) []string {
	list := []string{v.Text}
	if v.Kind == document.List {
		list = v.AsStrings(at, &p.Problems)
	} else {
		v.AsString(at, &p.Problems)
	}
	if len(list) == 0 || len(list) > 64 {
		p.Add(at, "needs 1 to 64 entries")
	}
	for i, s := range list {
		if !isScope(s) {
			p.Add(at, `entry %d is not a region or service: small letters, digits and '-', such as "eu-central-1" or "s3"`, i+1)
		}
	}
	return slices.Compact(list)
}

func isScope(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func (p *headerParser) hmacSigning(at string, v document.Value) *HMACSigning {
	s := &HMACSigning{Format: SignSignature, Encoding: "hex", Clock: "unix"}
	v.Fields(at, `an object of "key", "header" and "template"`, &p.Problems, map[string]func(string, document.Value){
		"key":       func(at string, v document.Value) { s.Key = p.key(at, "key", v) },
		"header":    func(at string, v document.Value) { s.Header = p.headerName(at, v) },
		"format":    func(at string, v document.Value) { s.Format = p.template(at, v, SignSignature, SignTimestamp) },
		"encoding":  func(at string, v document.Value) { s.Encoding = p.oneOf(at, v, "hex", "base64") },
		"timestamp": func(at string, v document.Value) { s.Timestamp, s.Clock = p.timestamp(at, v) },
		"template": func(at string, v document.Value) {
			s.Template = p.template(at, v, SignTimestamp, "{method}", "{host}", "{path}", "{query}", "{target}", SignBody, SignBodyHash)
		},
	})
	p.required(at, v, "key", "header", "template")
	if n := strings.Count(s.Template, "{"); strings.Count(s.Template, SignBody) > 1 || n > maxSignedParts {
		p.Add(document.Pointer(at, "template"), "may have %s once, and %d names in all", SignBody, maxSignedParts)
	}
	if v.Has("format") && !strings.Contains(s.Format, SignSignature) {
		p.Add(document.Pointer(at, "format"), "has no %s", SignSignature)
	}
	if flaw := match.HeaderBytesFlaw(s.Format); flaw != "" {
		p.Add(document.Pointer(at, "format"), "%s", flaw)
	}
	if s.Header != "" && match.FoldHeader(s.Header) == match.FoldHeader(s.Timestamp) {
		p.Add(document.Pointer(at, "timestamp"), "is the header of the signature; name another")
	}
	return s
}

func (p *headerParser) headerName(at string, v document.Value) string {
	n := v.AsString(at, &p.Problems)
	if flaw := match.HeaderFlaw(n); v.Kind == document.Text && flaw != "" {
		p.Add(at, "%s %s", name.Quote(name.Shown(n, name.IsToken)), flaw)
	}
	return textproto.CanonicalMIMEHeaderKey(n)
}

// timestamp reads how the time is sent: {"header": name, "format": …}.
func (p *headerParser) timestamp(at string, v document.Value) (header, clock string) {
	clock = "unix"
	v.Fields(at, `an object of "header" and "format"`, &p.Problems, map[string]func(string, document.Value){
		"header": func(at string, v document.Value) { header = p.headerName(at, v) },
		"format": func(at string, v document.Value) { clock = p.oneOf(at, v, "unix", "unix_ms", "rfc3339") },
	})
	return header, clock
}

func (p *headerParser) oneOf(at string, v document.Value, known ...string) string {
	if text := v.AsString(at, &p.Problems); !slices.Contains(known, text) {
		p.Add(at, "is not one of %s", strings.Join(known, ", "))
	}
	return v.Text
}

// template reads a text in which names in braces are replaced: only those known.
func (p *headerParser) template(at string, v document.Value, known ...string) string {
	text := v.AsString(at, &p.Problems)
	if len(text) > maxSigned {
		p.Add(at, "is %d bytes; the limit is %d", len(text), maxSigned)
		return ""
	}
	rest := text
	for _, name := range known {
		rest = strings.ReplaceAll(rest, name, "")
	}
	if strings.ContainsAny(rest, "{}") {
		p.Add(at, "braces are for %s", strings.Join(known, ", "))
	}
	return text
}

// AWSCredentials are what requests to AWS are signed with.
type AWSCredentials struct {
	AccessKeyID     string
	SecretAccessKey name.Secret
	SessionToken    name.Secret // empty for a user's long-lived keys
	Expires         time.Time   // not to be used from then on; zero: they do not expire
}

var errAWSCredentials = errors.New(
	`is not a JSON object of "access_key_id", "secret_access_key" and, for temporary credentials, "session_token"`)

// credentialProcess is the JSON that AWS's credential_process prints. Version is 1, or missing.
type credentialProcess struct {
	Version int        `json:"Version,omitempty"`
	ID      string     `json:"AccessKeyId"`
	Key     string     `json:"SecretAccessKey,omitempty"`
	Token   string     `json:"SessionToken,omitempty"`
	Expires *time.Time `json:"Expiration,omitempty"`
}

// ParseAWSCredentials reads credentials from the value of one secret: a JSON object of access_key_id, secret_access_key
// and session_token, or one as AWS's credential_process prints it. Unknown fields are ignored, so the output of `aws configure
// export-credentials` can be used as it is. The error shows nothing of it.
func ParseAWSCredentials(s name.Secret) (AWSCredentials, error) {
	var parts struct {
		ID    string `json:"access_key_id"`
		Key   string `json:"secret_access_key"`
		Token string `json:"session_token"`
		credentialProcess
	}
	if json.Unmarshal([]byte(s.Reveal()), &parts) != nil || parts.Version > 1 {
		return AWSCredentials{}, errAWSCredentials
	}
	c := AWSCredentials{AccessKeyID: parts.ID, SecretAccessKey: name.NewSecret(parts.Key), SessionToken: name.NewSecret(parts.Token)}
	if other := &parts.credentialProcess; other.ID != "" {
		c = AWSCredentials{AccessKeyID: other.ID, SecretAccessKey: name.NewSecret(other.Key), SessionToken: name.NewSecret(other.Token)}
	}
	if parts.Expires != nil {
		c.Expires = *parts.Expires
	}
	if !isAccessKeyID(c.AccessKeyID) || c.SecretAccessKey.Reveal() == "" || match.CheckHeaderValue(c.SessionToken.Reveal()) != nil {
		return AWSCredentials{}, errAWSCredentials
	}
	return c, nil
}

// Secret returns the credentials as the value of one secret, of one line: the inverse of [ParseAWSCredentials].
func (c AWSCredentials) Secret() name.Secret {
	d := credentialProcess{
		Version: 1, ID: c.AccessKeyID, Key: c.SecretAccessKey.Reveal(), Token: c.SessionToken.Reveal(),
	}
	if !c.Expires.IsZero() {
		utc := c.Expires.UTC()
		d.Expires = &utc
	}
	text, err := json.Marshal(d)
	if err != nil { // a year beyond 9999: nothing that expires then is usable
		return name.Secret{}
	}
	return name.NewSecret(string(text))
}

// isAccessKeyID reports whether s may stand in a credential scope.
func isAccessKeyID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !name.IsWordByte(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}
