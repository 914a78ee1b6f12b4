package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"boxgate/policy"
)

// HMAC signs a request by HMAC-SHA256.
func HMAC(s *policy.HMACSigning, key policy.Secret, r *Request) (Signed, error) {
	if key.Reveal() == "" {
		return Signed{}, errKey
	}
	clock := stamp(s.Clock, r.Time)
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	_, _ = mac.Write([]byte(fill(s.Template, clock, r))) // never fails
	signature := hex.EncodeToString(mac.Sum(nil))
	if s.Encoding == "base64" {
		signature = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	value := strings.NewReplacer(policy.SignSignature, signature, policy.SignTimestamp, clock).Replace(s.Format)
	signed := Signed{Target: r.Target, Set: []policy.Header{{Name: s.Header, Value: policy.NewSecret(value)}}}
	if s.Timestamp != "" {
		signed.Set = append(signed.Set, policy.Header{Name: s.Timestamp, Value: policy.NewSecret(clock)})
	}
	return signed, nil
}

// fill makes the text to sign. It is made in one pass, so that nothing in the request is taken for a part of the template.
func fill(template, clock string, r *Request) string {
	path, query, _ := strings.Cut(r.Target, "?")
	pairs := []string{
		policy.SignTimestamp, clock, "{method}", r.Method, "{host}", r.Host, "{path}", path, "{query}", query, "{target}", r.Target,
		policy.SignBody, string(r.Body),
	}
	if strings.Contains(template, policy.SignBodyHash) {
		pairs = append(pairs, policy.SignBodyHash, r.bodyHash())
	}
	return strings.NewReplacer(pairs...).Replace(template)
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
