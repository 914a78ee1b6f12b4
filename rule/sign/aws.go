package sign

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

const hashHeader = "X-Amz-Content-Sha256"

// awsEffect signs by AWS Signature Version 4. A single region or service is always used. If there are several, the credential scope of the
// client's signature must name one of them.
type awsEffect struct {
	credentials rule.Value // see [ParseCredentials]
	regions     []string
	services    []string
}

// Key implements [rule.Effect].
func (*awsEffect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *awsEffect) Document() any {
	return map[string]any{"aws": map[string]any{"credentials": e.credentials.Plain(), "region": e.regions, "service": e.services}}
}

// Show implements [rule.Effect].
func (e *awsEffect) Show() any {
	return signingView{Kind: "aws", Secret: e.credentials.Source, Regions: e.regions, Services: e.services}
}

// Equal implements [rule.Effect].
func (e *awsEffect) Equal(other rule.Effect) bool {
	o, ok := other.(*awsEffect)
	return ok && e.credentials.Equal(o.credentials) && slices.Equal(e.regions, o.regions) && slices.Equal(e.services, o.services)
}

// Sources implements [rule.Sourced].
func (e *awsEffect) Sources() []string { return e.credentials.Sources() }

// EachSent implements [rule.Sender]. A session token is sent; the keys are not.
func (e *awsEffect) EachSent(visit func(literal name.Secret, source string)) {
	c, err := ParseCredentials(e.credentials.Literal)
	if e.credentials.Source != "" || err == nil {
		visit(c.SessionToken, e.credentials.Source)
	}
}

// SendsLater implements [rule.Sender].
func (*awsEffect) SendsLater() bool { return true }

// ScrubsByDefault implements [rule.Sender].
func (*awsEffect) ScrubsByDefault() bool { return false }

// SetsHeader implements [rule.Signer].
func (*awsEffect) SetsHeader(name string) bool {
	switch match.FoldHeader(name) {
	case "authorization", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256":
		return true
	}
	return false
}

// HashesBody implements [rule.Signer].
func (*awsEffect) HashesBody(m *rule.Message) (bool, error) {
	hash, err := awsHash(m)
	return hash == "" && m.Length != 0, err
}

// TooLarge implements [rule.Signer].
func (*awsEffect) TooLarge() *rule.Refusal { return &tooLarge }

var errExpired = errors.New("the AWS credentials have expired")

// Sign implements [rule.Signer]. A session token is sent in the clear next to the signature, and AWS echoes the request's headers in the answer
// if it refuses the request.
func (e *awsEffect) Sign(ctx context.Context, s rule.Secrets, m *rule.Message) (rule.Signed, error) {
	text, err := e.credentials.Bare(ctx, s)
	if err != nil {
		return rule.Signed{}, err
	}
	credentials, err := ParseCredentials(name.NewSecret(text))
	if err != nil {
		return rule.Signed{}, err
	}
	if !credentials.Expires.IsZero() && !m.Time.Before(credentials.Expires) {
		return rule.Signed{}, errExpired
	}
	return e.sign(credentials, &request{Message: m})
}

func (e *awsEffect) sign(c Credentials, r *request) (rule.Signed, error) {
	own, err := r.awsScope()
	if err != nil {
		return rule.Signed{}, err
	}
	region, service, err := own.within(e)
	if err != nil {
		return rule.Signed{}, err
	}
	target, err := withoutPresigned(r.Target)
	if err != nil {
		return rule.Signed{}, err
	}
	hash, err := awsHash(r.Message)
	if err != nil {
		return rule.Signed{}, err
	}
	if hash == "" {
		hash = r.bodyHash()
	}
	out := r.request(target, isS3(service))
	out.Header.Set(hashHeader, hash)
	creds := aws.Credentials{AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey.Reveal(), SessionToken: c.SessionToken.Reveal()}
	signer := v4.NewSigner(func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = isS3(service)
	})
	if err := signer.SignHTTP(context.Background(), creds, out, hash, service, region, r.Time); err != nil {
		return rule.Signed{}, err
	}
	signed, removed := rule.Signed{Target: target, Shown: c.SessionToken.Reveal()}, []rule.Field(nil)
	for _, n := range awsOwn {
		if v := out.Header.Get(n); v != "" {
			signed.Set = append(signed.Set, rule.Field{Name: n, Value: name.NewSecret(v)})
		} else {
			removed = append(removed, rule.Field{Name: n, Remove: true})
		}
	}
	signed.Set = append(signed.Set, removed...)
	return signed, nil
}

// awsOwn are the headers of a signature. The client's are replaced or removed.
var awsOwn = []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", hashHeader, "X-Amz-Region-Set", "X-Amz-S3session-Token"}

// isS3 reports whether a service verifies the path of a request unchanged. The others normalize it and encode it once more.
func isS3(service string) bool {
	return service == "s3" || service == "s3express" || strings.HasPrefix(service, "s3-")
}

// normalizedPath returns a path without empty and dot segments, as AWS's services verify it. Encoded dots and slashes are kept.
func normalizedPath(path string) string {
	var kept []string
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "" || segment == ".":
		case segment != "..":
			kept = append(kept, segment)
		case len(kept) > 0:
			kept = kept[:len(kept)-1]
		}
	}
	out := "/" + strings.Join(kept, "/")
	if len(kept) > 0 && strings.HasSuffix(path, "/") {
		out += "/"
	}
	return out
}

// request returns the request for the signer, with the fields that are signed. The opaque URL preserves the encoding of the path as
// forwarded.
func (r *request) request(target string, plain bool) *http.Request {
	path, query, _ := strings.Cut(target, "?")
	if !plain {
		path = normalizedPath(path)
	}
	out := &http.Request{
		Method: r.Method, Host: r.Host, Header: http.Header{}, ContentLength: max(0, r.Length),
		URL: &url.URL{Opaque: "//" + r.Host + path, RawQuery: query},
	}
	for _, f := range r.Fields {
		if isSigned(strings.ToLower(f.Name)) {
			name := textproto.CanonicalMIMEHeaderKey(f.Name)
			out.Header[name] = append(out.Header[name], f.Value)
		}
	}
	return out
}

// isSigned reports whether a field is signed: the fields that AWS requires, and the type of the content. Proxies may change the
// others.
func isSigned(name string) bool {
	switch {
	case name == "content-type", name == "content-md5":
		return true
	case !strings.HasPrefix(name, "x-amz-"):
		return false
	}
	// The fields of the signature replace the client's, which are removed in every spelling and must not be signed.
	name = strings.ReplaceAll(name, "_", "-")
	return !slices.ContainsFunc(awsOwn, func(own string) bool { return strings.EqualFold(name, own) })
}

// awsHash returns the hash of the body for the signature, or "" if it must be computed.
func awsHash(m *rule.Message) (string, error) {
	values := m.Values(hashHeader)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", refuse("The request has several values of X-Amz-Content-Sha256.")
	}
	switch v := values[0]; {
	case v == "UNSIGNED-PAYLOAD", v == "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
		return v, nil
	case strings.HasPrefix(v, "STREAMING-"):
		return "", refuse("Each chunk of the body is signed with a key that the gateway replaces. " +
			"Send the body with UNSIGNED-PAYLOAD, or with STREAMING-UNSIGNED-PAYLOAD-TRAILER, as clients do over HTTPS by default.")
	case !isHash(v):
		return "", refuse("X-Amz-Content-Sha256 is not a SHA-256 hash in hexadecimal.")
	case m.Altered:
		return "", nil
	default:
		return v, nil
	}
}

func isHash(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == 64
}

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

// Credentials are credentials of AWS for signing requests.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey name.Secret
	SessionToken    name.Secret // empty for long-lived keys of a user
	Expires         time.Time   // zero: they do not expire
}

var errCredentials = errors.New(
	`is not a JSON object of "access_key_id", "secret_access_key" and, for temporary credentials, "session_token"`)

// credentialProcess is the JSON that AWS's credential_process prints. Version is 1, or missing.
type credentialProcess struct {
	Version int        `json:"Version,omitempty"`
	ID      string     `json:"AccessKeyId"`
	Key     string     `json:"SecretAccessKey,omitempty"`
	Token   string     `json:"SessionToken,omitempty"`
	Expires *time.Time `json:"Expiration,omitempty"`
}

// ParseCredentials reads credentials from the value of one secret: a JSON object of access_key_id, secret_access_key
// and session_token, or the output of AWS's credential_process. Unknown fields are ignored, so that the output of `aws configure
// export-credentials` is accepted. The error does not quote the value.
func ParseCredentials(s name.Secret) (Credentials, error) {
	var parts struct {
		ID    string `json:"access_key_id"`
		Key   string `json:"secret_access_key"`
		Token string `json:"session_token"`
		credentialProcess
	}
	if json.Unmarshal([]byte(s.Reveal()), &parts) != nil || parts.Version > 1 {
		return Credentials{}, errCredentials
	}
	c := Credentials{AccessKeyID: parts.ID, SecretAccessKey: name.NewSecret(parts.Key), SessionToken: name.NewSecret(parts.Token)}
	if other := &parts.credentialProcess; other.ID != "" {
		c = Credentials{AccessKeyID: other.ID, SecretAccessKey: name.NewSecret(other.Key), SessionToken: name.NewSecret(other.Token)}
	}
	if parts.Expires != nil {
		c.Expires = *parts.Expires
	}
	if !isAccessKeyID(c.AccessKeyID) || c.SecretAccessKey.Reveal() == "" || match.CheckHeaderValue(c.SessionToken.Reveal()) != nil {
		return Credentials{}, errCredentials
	}
	return c, nil
}

// Secret is the inverse of [ParseCredentials]. The value has one line.
func (c Credentials) Secret() name.Secret {
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

// isAccessKeyID reports whether s is allowed in a credential scope.
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
