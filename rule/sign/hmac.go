package sign

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strconv"
	"strings"
	"time"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// Names in the templates of an HMAC.
const (
	timestampName = "{timestamp}"
	signatureName = "{signature}"
	bodyName      = "{body}"
	bodyHashName  = "{body_sha256}"
)

// hmacEffect sets a header to the HMAC-SHA256 of a text made from the request.
type hmacEffect struct {
	key       rule.Value
	header    string // canonical form
	format    string // of the header's value: {signature} and {timestamp} are replaced
	encoding  string // of the signature: "hex" or "base64"
	template  string // of the signed text: {timestamp}, {method}, {host}, {path}, {query}, {target}, {body}, {body_sha256} are replaced
	timestamp string // header with the time, canonical form; "" if the time is not sent, or in header
	clock     string // format of the time: "unix", "unix_ms" or "rfc3339"
}

// Key implements [rule.Effect].
func (*hmacEffect) Key() string { return Key }

// Document implements [rule.Effect].
func (e *hmacEffect) Document() any {
	clock := map[string]string{"format": e.clock}
	if e.timestamp != "" {
		clock["header"] = e.timestamp
	}
	return map[string]any{"hmac": map[string]any{
		"key": e.key.Plain(), "header": e.header, "format": e.format, "encoding": e.encoding, "template": e.template, "timestamp": clock,
	}}
}

// Show implements [rule.Effect].
func (e *hmacEffect) Show() any {
	return signingView{Kind: "hmac", Secret: e.key.Source, Header: e.header}
}

// Equal implements [rule.Effect].
func (e *hmacEffect) Equal(other rule.Effect) bool {
	o, ok := other.(*hmacEffect)
	if !ok || !e.key.Equal(o.key) {
		return false
	}
	a, b := *e, *o
	a.key, b.key = rule.Value{}, rule.Value{}
	return a == b
}

// Sources implements [rule.Sourced].
func (e *hmacEffect) Sources() []string { return e.key.Sources() }

// EachSent implements [rule.Sender]: the key is not sent.
func (*hmacEffect) EachSent(func(literal name.Secret, source string)) {}

// SendsLater implements [rule.Sender].
func (*hmacEffect) SendsLater() bool { return false }

// ScrubsByDefault implements [rule.Sender].
func (*hmacEffect) ScrubsByDefault() bool { return false }

// SetsHeader implements [rule.Signer].
func (e *hmacEffect) SetsHeader(name string) bool {
	return match.FoldHeader(name) == match.FoldHeader(e.header) || match.FoldHeader(name) == match.FoldHeader(e.timestamp)
}

// HashesBody implements [rule.Signer].
func (e *hmacEffect) HashesBody(*rule.Message) (bool, error) {
	return strings.Contains(e.template, bodyName) || strings.Contains(e.template, bodyHashName), nil
}

// TooLarge implements [rule.Signer].
func (*hmacEffect) TooLarge() *rule.Refusal { return &tooLarge }

// Sign implements [rule.Signer].
func (e *hmacEffect) Sign(ctx context.Context, s rule.Secrets, m *rule.Message) (rule.Signed, error) {
	key, err := e.key.Bare(ctx, s)
	if err != nil {
		return rule.Signed{}, err
	}
	if key == "" {
		return rule.Signed{}, errKey
	}
	clock := stamp(e.clock, m.Time)
	mac := hmac.New(sha256.New, []byte(key))
	fill(mac, e.template, clock, &request{Message: m})
	signature := hex.EncodeToString(mac.Sum(nil))
	if e.encoding == "base64" {
		signature = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	value := strings.NewReplacer(signatureName, signature, timestampName, clock).Replace(e.format)
	signed := rule.Signed{Target: m.Target, Set: []rule.Field{{Name: e.header, Value: name.NewSecret(value)}}}
	if e.timestamp != "" {
		signed.Set = append(signed.Set, rule.Field{Name: e.timestamp, Value: name.NewSecret(clock)})
	}
	return signed, nil
}

// fill writes the signed text without copying its parts. It replaces names in one pass, so that names in the request are not
// replaced.
func fill(w io.Writer, template, clock string, r *request) {
	path, query, _ := strings.Cut(r.Target, "?")
	text := map[string]func() string{
		timestampName: func() string { return clock },
		"{method}":    func() string { return r.Method },
		"{host}":      func() string { return r.Host },
		"{path}":      func() string { return path },
		"{query}":     func() string { return query },
		"{target}":    func() string { return r.Target },
		bodyHashName:  r.bodyHash,
	}
	for template != "" {
		plain, rest, found := strings.Cut(template, "{")
		_, _ = io.WriteString(w, plain) // a hash never fails
		if !found {
			return
		}
		name, after, _ := strings.Cut(rest, "}")
		if name = "{" + name + "}"; name == bodyName {
			_, _ = w.Write(r.Body)
		} else if value := text[name]; value != nil { // always so: rules have no other names
			_, _ = io.WriteString(w, value())
		}
		template = after
	}
}

func stamp(format string, t time.Time) string {
	switch format {
	case "unix_ms":
		return strconv.FormatInt(t.UnixMilli(), 10)
	case "rfc3339":
		return t.UTC().Format(time.RFC3339)
	}
	return strconv.FormatInt(t.Unix(), 10)
}
