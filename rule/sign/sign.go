// Package sign is the kind of rules that sign requests with keys that the box does not have, by AWS Signature Version 4 or by HMAC-SHA256 of a
// text made from the request:
//
//	{"sign": {"aws": {"credentials": {"secret": "aws"}, "region": "eu-central-1", "service": "s3"}}}
//	{"sign": {"hmac": {"key": {"secret": "hooks"}, "header": "X-Signature", "template": "{timestamp}.{body}"}}}
//
// The request is signed as it will be forwarded. The caller provides the time.
package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Key is the member of a rule's document.
const Key = "sign"

// Kind reads rules that sign requests.
type Kind struct{}

// Key implements [rule.Kind].
func (Kind) Key() string { return Key }

// Doc implements [rule.Kind].
func (Kind) Doc() string { return "sign the requests, with keys that the box does not have" }

// Form implements [rule.Kind].
func (Kind) Form() reflect.Type { return reflect.TypeFor[signingBody]() }

// View implements [rule.Viewed].
func (Kind) View() (form reflect.Type, doc string) { return reflect.TypeFor[signingView](), "" }

// Example implements [rule.Kind].
func (Kind) Example() string {
	return `{"hmac": {"key": "sk-key", "header": "X-Signature", "format": "v1={signature}", "encoding": "base64", "template": "{timestamp}.{body}", "timestamp": {"header": "X-Time", "format": "rfc3339"}}}`
}

// signingBody is the JSON of the member.
type signingBody struct {
	AWS  *awsSigningBody  `json:"aws,omitempty" doc:"by AWS Signature Version 4"`
	HMAC *hmacSigningBody `json:"hmac,omitempty" doc:"by HMAC-SHA256 of a template; instead of aws"`
}

type awsSigningBody struct {
	Credentials rule.ValueForm `json:"credentials" doc:"a JSON object of access_key_id, secret_access_key and session_token, as a string, or a secret with that value"`
	Region      signingScopes  `json:"region"`
	Service     signingScopes  `json:"service"`
}

type hmacSigningBody struct {
	Key       rule.ValueForm `json:"key"`
	Header    string         `json:"header" doc:"that has the signature"`
	Format    string         `json:"format,omitempty" doc:"of the header's value: {signature} by default; {timestamp} as well"`
	Encoding  string         `json:"encoding,omitempty" doc:"hex (default) or base64"`
	Timestamp *signingClock  `json:"timestamp,omitempty"`
	Template  string         `json:"template" doc:"what is signed, with {timestamp}, {method}, {host}, {path}, {query}, {target}, {body}, {body_sha256}"`
}

type signingClock struct {
	Header string `json:"header,omitempty" doc:"that has the time; absent if no header of its own has"`
	Format string `json:"format,omitempty" doc:"unix (default), unix_ms or rfc3339"`
}

// signingScopes is a part of credential scopes.
type signingScopes struct{}

// Forms lists a single scope, and a list from which the client's signature chooses.
func (signingScopes) Forms() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[string](), reflect.TypeFor[[]string]()}
}

// signingView is the JSON of an effect as shown by the API, without the key.
type signingView struct {
	Kind     string   `json:"kind" doc:"aws or hmac"`
	Secret   string   `json:"secret,omitempty" doc:"the secret that signs; absent for a literal"`
	Regions  []string `json:"regions,omitempty"`
	Services []string `json:"services,omitempty"`
	Header   string   `json:"header,omitempty" doc:"that has the signature of an HMAC"`
}

// Line implements [rule.Kind].
func (Kind) Line(shown json.RawMessage) string {
	var v signingView
	if json.Unmarshal(shown, &v) != nil {
		return ""
	}
	return rule.LineWithSecret("signed: "+v.Kind, v.Secret)
}

// Parse implements [rule.Kind]. It reads {"aws": …} or {"hmac": …}.
func (Kind) Parse(at string, v document.Value, c *rule.Context) (e rule.Effect) {
	before := len(c.List)
	v.Fields(at, `{"aws": …} or {"hmac": …}`, &c.Problems, map[string]func(string, document.Value){
		"aws":  func(at string, v document.Value) { e = parseAWS(at, v, c) },
		"hmac": func(at string, v document.Value) { e = parseHMAC(at, v, c) },
	})
	if v.Kind == document.Object && v.Has("aws") == v.Has("hmac") {
		c.Add(at, `needs one of "aws" and "hmac"`)
	}
	if len(c.List) > before {
		return nil
	}
	return e
}

func parseAWS(at string, v document.Value, c *rule.Context) *awsEffect {
	e := &awsEffect{}
	v.Fields(at, `an object of "credentials", "region" and "service"`, &c.Problems, map[string]func(string, document.Value){
		"credentials": func(at string, v document.Value) {
			e.credentials = c.Filled(at, "credentials", v, false)
			if e.credentials.Source != "" || e.credentials.Literal.Reveal() == "" {
				return
			}
			if _, err := ParseCredentials(e.credentials.Literal); err != nil {
				c.Add(at, "%s", err)
			}
		},
		"region":  func(at string, v document.Value) { e.regions = parseScopes(at, v, c) },
		"service": func(at string, v document.Value) { e.services = parseScopes(at, v, c) },
	})
	c.Required(at, v, "credentials", "region", "service")
	return e
}

// parseScopes reads a part of credential scopes: one, or a list from which requests may choose.
func parseScopes(at string, v document.Value, c *rule.Context) []string {
	list := []string{v.Text}
	if v.Kind == document.List {
		list = v.AsStrings(at, &c.Problems)
	} else {
		v.AsString(at, &c.Problems)
	}
	if len(list) == 0 || len(list) > 64 {
		c.Add(at, "needs 1 to 64 entries")
	}
	for i, s := range list {
		if !isScope(s) {
			c.Add(at, `entry %d is not a region or service: small letters, digits and '-', such as "eu-central-1" or "s3"`, i+1)
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

const (
	maxSigned      = 4 << 10 // length of a template or format
	maxSignedParts = 32      // names in a template, each replaced by up to the length of a head
)

func parseHMAC(at string, v document.Value, c *rule.Context) *hmacEffect {
	e := &hmacEffect{format: signatureName, encoding: "hex", clock: "unix"}
	v.Fields(at, `an object of "key", "header" and "template"`, &c.Problems, map[string]func(string, document.Value){
		"key":       func(at string, v document.Value) { e.key = c.Filled(at, "key", v, false) },
		"header":    func(at string, v document.Value) { e.header = c.HeaderName(at, v) },
		"format":    func(at string, v document.Value) { e.format = parseTemplate(at, v, c, signatureName, timestampName) },
		"encoding":  func(at string, v document.Value) { e.encoding = c.OneOf(at, v, "hex", "base64") },
		"timestamp": func(at string, v document.Value) { e.timestamp, e.clock = parseTimestamp(at, v, c) },
		"template": func(at string, v document.Value) {
			e.template = parseTemplate(at, v, c, timestampName, "{method}", "{host}", "{path}", "{query}", "{target}", bodyName, bodyHashName)
		},
	})
	c.Required(at, v, "key", "header", "template")
	if n := strings.Count(e.template, "{"); strings.Count(e.template, bodyName) > 1 || n > maxSignedParts {
		c.Add(document.Pointer(at, "template"), "may have %s once, and %d names in all", bodyName, maxSignedParts)
	}
	if v.Has("format") && !strings.Contains(e.format, signatureName) {
		c.Add(document.Pointer(at, "format"), "has no %s", signatureName)
	}
	if flaw := match.HeaderBytesFlaw(e.format); flaw != "" {
		c.Add(document.Pointer(at, "format"), "%s", flaw)
	}
	if e.header != "" && match.FoldHeader(e.header) == match.FoldHeader(e.timestamp) {
		c.Add(document.Pointer(at, "timestamp"), "is the header of the signature; name another")
	}
	return e
}

// parseTimestamp reads the header and the format of the time: {"header": name, "format": …}.
func parseTimestamp(at string, v document.Value, c *rule.Context) (header, clock string) {
	clock = "unix"
	v.Fields(at, `an object of "header" and "format"`, &c.Problems, map[string]func(string, document.Value){
		"header": func(at string, v document.Value) { header = c.HeaderName(at, v) },
		"format": func(at string, v document.Value) { clock = c.OneOf(at, v, "unix", "unix_ms", "rfc3339") },
	})
	return header, clock
}

// parseTemplate reads a text with names in braces, which must be known ones.
func parseTemplate(at string, v document.Value, c *rule.Context, known ...string) string {
	text := v.AsString(at, &c.Problems)
	if len(text) > maxSigned {
		c.Add(at, "is %d bytes; the limit is %d", len(text), maxSigned)
		return ""
	}
	rest := text
	for _, name := range known {
		rest = strings.ReplaceAll(rest, name, "")
	}
	if strings.ContainsAny(rest, "{}") {
		c.Add(at, "braces are for %s", strings.Join(known, ", "))
	}
	return text
}

// request is a request to sign.
type request struct {
	*rule.Message
	hash string // of the body in hexadecimal, "" until the first use
}

func refuse(detail string) error {
	return &rule.Refusal{Status: http.StatusBadRequest, Reason: name.ReasonUnsignable, Detail: detail}
}

// tooLarge refuses a body that is too large to hash.
var tooLarge = rule.Refusal{Status: http.StatusRequestEntityTooLarge, Reason: name.ReasonUnsignable,
	Detail: "The gateway signs requests to this host, and hashes bodies of up to 1 MiB for it: send the hash of a larger one in X-Amz-Content-Sha256, or UNSIGNED-PAYLOAD, if the service takes that."}

// bodyHash returns the hash of the body in hexadecimal. It is computed once, as a template may use it several times.
func (r *request) bodyHash() string {
	if r.hash == "" {
		sum := sha256.Sum256(r.Body)
		r.hash = hex.EncodeToString(sum[:])
	}
	return r.hash
}

var errKey = errors.New("the key is empty")
