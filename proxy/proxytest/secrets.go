package proxytest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/rule/placeholder"
)

// BoxKey is the key for deriving the box's tokens.
var BoxKey = name.NewSecret("the key of the box")

// TokenFor returns the box's token for a variable.
func TokenFor(variable string) string { return placeholder.NewToken(BoxKey, variable) }

// ForeignToken returns another box's token for a variable.
func ForeignToken(variable string) string {
	return placeholder.NewToken(name.NewSecret("another box"), variable)
}

// Sources are the secrets of a test, by name.
type Sources map[string]func(context.Context) (string, error)

// Secret implements [proxy.Secrets].
func (s Sources) Secret(ctx context.Context, n string) (name.Secret, error) {
	get, ok := s[n]
	if !ok {
		return name.Secret{}, errors.New("no such secret")
	}
	v, err := get(ctx)
	return name.NewSecret(v), err
}

// Fixed is a source that always has the value v.
func Fixed(v string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return v, nil }
}

// Basic returns the field value of basic authentication.
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Recorder is an upstream that records requests and answers 200.
type Recorder struct {
	mu   sync.Mutex
	got  []*http.Request
	body []string
}

// cutShort is appended to a recorded body that was truncated.
const cutShort = " (cut short)"

// Serve handles one request.
func (r *Recorder) Serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		body = append(body, cutShort...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.body = append(r.got, req), append(r.body, string(body))
}

// All returns the requests so far, and their bodies.
func (r *Recorder) All() (requests []*http.Request, bodies []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got), slices.Clone(r.body)
}

// Take returns the last request and its body, and drops all.
func (r *Recorder) Take() (*http.Request, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.got) == 0 {
		return nil, ""
	}
	req, body := r.got[len(r.got)-1], r.body[len(r.body)-1]
	r.got, r.body = nil, nil
	return req, body
}

// BodyOf returns the body of the request for a path, or "" if none has arrived. Unlike [Recorder.Take] it is not misled by
// an earlier request whose end the server notices late.
func (r *Recorder) BodyOf(path string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, req := range r.got {
		if req.URL.Path == path {
			return r.body[i]
		}
	}
	return ""
}

// EachProtocol runs a test with each pair of client and upstream protocols.
func EachProtocol(t *testing.T, test func(t *testing.T, l *Rig, client *http.Client, port uint16, up *Recorder)) {
	for _, v := range []struct {
		name       string
		client, up bool // HTTP/2
	}{{"h1 to h1", false, false}, {"h2 to h2", true, true}, {"h2 to h1", true, false}, {"h1 to a server of both", false, true}} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			l := New(t, AllowAll, Patient)
			l.With(func(c *proxy.Config) {
				c.Secrets = Sources{"s": Fixed("from-source"), "colon": Fixed("a:b"), "empty": Fixed(""), "bad": Fixed("a\r\nHost: evil"),
					"broken": func(context.Context) (string, error) { return "", errors.New("it does not answer") }}
			})
			up := &Recorder{}
			_, port := l.HTTPSServer(v.up, up.Serve)
			l.Rules(AllowAll, `{}`)
			test(t, l, l.HTTPClientLater(port, v.client), port, up)
		})
	}
}

// HTTPClientLater is HTTPClient for tests that set their rules first: it makes an HTTP/2 connection with the first request.
func (r *Rig) HTTPClientLater(port uint16, h2 bool) *http.Client {
	if !h2 {
		return r.HTTPClient(port, false)
	}
	return &http.Client{Timeout: r.patience(), Transport: &lateHTTP2{dial: func() *http.ClientConn { return r.http2Conn(port) }}}
}

type lateHTTP2 struct {
	once sync.Once
	dial func() *http.ClientConn
	conn *http.ClientConn
}

func (d *lateHTTP2) RoundTrip(r *http.Request) (*http.Response, error) {
	d.once.Do(func() { d.conn = d.dial() })
	return d.conn.RoundTrip(r)
}

// Everywhere allows placeholders in all places.
const Everywhere = `"places": ["header", "query", "form", "json", "websocket"]`

// JSONRule returns a header rule for API with the placeholders KEY and OTHER, and one for another host. more is inserted
// into the first.
func JSONRule(t testing.TB, port uint16, more string) string {
	t.Helper()
	return `{"` + HostPort(port) + `": {"placeholders": {"KEY": "pa\"ss\\w&o=r d+%41/", "OTHER": {"secret": "s"}}` + more + `}, "elsewhere.test": {"placeholders": {"FOREIGN": "not-yours"}}}`
}

// IdentityText returns a certificate and its key as PEM, the form of such secrets.
func IdentityText(t *testing.T, c tls.Certificate) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// ScrubbedToken is the secret in the rule of Scrub, and ScrubStars its mask.
const (
	ScrubbedToken = "sk-l1ve/0123+456=789"
	ScrubStars    = "********************"
)

// Scrub applies a rule that sets ScrubbedToken and masks it in responses.
func (r *Rig) Scrub(port uint16) {
	r.Rules(AllowAll, `{"`+HostPort(port)+`": {"headers": {"Authorization": "Bearer `+ScrubbedToken+`"}, "scrub": true}}`)
}

// Reflections returns the encodings of the token that servers may reflect.
func Reflections(token string) []string {
	var escaped strings.Builder
	for _, c := range []byte(token) {
		fmt.Fprintf(&escaped, `\u%04X`, c)
	}
	b64 := base64.StdEncoding.EncodeToString
	return []string{
		token, url.QueryEscape(token), escaped.String(), strings.ReplaceAll(token, "/", `\/`), hex.EncodeToString([]byte(token)),
		b64([]byte(token)), b64([]byte("Bearer " + token)), b64([]byte("x" + token + "y")), base64.RawURLEncoding.EncodeToString([]byte("xy" + token)),
	}
}

// Leak returns a form of the token that text contains, or "".
func Leak(text string) string {
	for _, r := range Reflections(ScrubbedToken) {
		if r = strings.TrimRight(r, "="); strings.Contains(text, r) || strings.Contains(text, r[4:len(r)-4]) {
			return r
		}
	}
	return ""
}
