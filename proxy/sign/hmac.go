package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strconv"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// HMAC signs a request by HMAC-SHA256.
func HMAC(s *policy.HMACSigning, key name.Secret, r *Request) (Signed, error) {
	if key.Reveal() == "" {
		return Signed{}, errKey
	}
	clock := stamp(s.Clock, r.Time)
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	fill(mac, s.Template, clock, r)
	signature := hex.EncodeToString(mac.Sum(nil))
	if s.Encoding == "base64" {
		signature = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	value := strings.NewReplacer(policy.SignSignature, signature, policy.SignTimestamp, clock).Replace(s.Format)
	signed := Signed{Target: r.Target, Set: []policy.Header{{Name: s.Header, Value: name.NewSecret(value)}}}
	if s.Timestamp != "" {
		signed.Set = append(signed.Set, policy.Header{Name: s.Timestamp, Value: name.NewSecret(clock)})
	}
	return signed, nil
}

// fill writes the text to sign, no part of which is copied. It is made in one pass, so that nothing in the request is taken for a
// part of the template.
func fill(w io.Writer, template, clock string, r *Request) {
	path, query, _ := strings.Cut(r.Target, "?")
	text := map[string]func() string{
		policy.SignTimestamp: func() string { return clock },
		"{method}":           func() string { return r.Method },
		"{host}":             func() string { return r.Host },
		"{path}":             func() string { return path },
		"{query}":            func() string { return query },
		"{target}":           func() string { return r.Target },
		policy.SignBodyHash:  r.bodyHash,
	}
	for template != "" {
		plain, rest, found := strings.Cut(template, "{")
		_, _ = io.WriteString(w, plain) // a hash never fails
		if !found {
			return
		}
		name, after, _ := strings.Cut(rest, "}")
		if name = "{" + name + "}"; name == policy.SignBody {
			_, _ = w.Write(r.Body)
		} else if value := text[name]; value != nil { // rules have no others
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
