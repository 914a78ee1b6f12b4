package har

import (
	"net/url"
	"strings"
	"testing"
)

// TestCredentialsAreRedacted: by the names of fields and parameters, with the scheme of Authorization and placeholders shown.
func TestCredentialsAreRedacted(t *testing.T) {
	t.Parallel()
	r := redaction{shown: []string{"bxgph_1"}}
	for _, tt := range [][3]string{
		{"Authorization", "Bearer abc", "Bearer [redacted]"}, {"authorization", "abc def", Redacted}, {"Authorization", "Bearer bxgph_1", "Bearer bxgph_1"},
		{"Proxy-Authorization", "Basic abc", "Basic [redacted]"}, {"Cookie", "a=b", Redacted}, {"Set-Cookie", "a=b", Redacted}, {"X-Api-Key", "abc", Redacted},
		{"X_API_KEY", "abc", Redacted}, {"X-Goog-Api-Key", "bxgph_1", "bxgph_1"}, {"Private-Token", "abc", Redacted}, {"X-Amz-Security-Token", "abc", Redacted},
		{"Accept", "abc", "abc"}, {"WWW-Authenticate", "Basic realm=a", "Basic realm=a"}, {"Sec-WebSocket-Key", "abc", "abc"},
		{"Ocp-Apim-Subscription-Key", "abc", Redacted}, {"DD-APPLICATION-KEY", "abc", Redacted}, {"X-Sentry-Auth", "abc", Redacted}, {"DPoP", "abc", Redacted},
		{"X-Amzn-Oidc-Data", "abc", Redacted}, {"Idempotency-Key", "abc", "abc"}, {"Location", "/in?ticket=abc", "/in?ticket=%5Bredacted%5D"},
		{"Location", "https://me:abc@a.example/", "https://%5Bredacted%5D@a.example/"}, {"Location", "//me:abc@a.example?a=@", "//%5Bredacted%5D@a.example?a=@"},
		{"Location", "/a//b@c", "/a//b@c"}, {"Location", "https://a.example/b@c", "https://a.example/b@c"},
		{"Sec-WebSocket-Protocol", "graphql-ws, v1", "graphql-ws, v1"}, {"Sec-WebSocket-Protocol", "realtime, openai-insecure-api-key.abc", "realtime, [redacted]"},
		{"Sec-WebSocket-Protocol", "bearer, abc", "bearer, [redacted]"}, {"Sec-WebSocket-Protocol", "openai-insecure-api-key.bxgph_1", "openai-insecure-api-key.bxgph_1"},
		{"Sec-WebSocket-Protocol", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", Redacted},
		{"Location", "/in?code=abc&a=b#access_token=c", "/in?code=%5Bredacted%5D&a=b#[redacted]"}, {"Referer", "https://a.example/?sig=abc", "https://a.example/?sig=%5Bredacted%5D"},
	} {
		if got := r.field(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%s: %s is shown as %s, want %s", tt[0], tt[1], got, tt[2])
		}
		if got := (redaction{credentials: true}).field(tt[0], tt[1]); got != tt[1] {
			t.Errorf("%s: %s is shown as %s with credentials", tt[0], tt[1], got)
		}
	}
}

// FuzzPath: whatever the query, no value of a credential is left in it, and the rest stays.
func FuzzPath(f *testing.F) {
	f.Add("/a?b=c&token=abc&to%6ben=def&&d&=&%zz=1;token=2")
	f.Fuzz(func(t *testing.T, path string) {
		shown, query := redaction{}.path(path)
		before, raw, _ := strings.Cut(path, "?")
		if after, _, _ := strings.Cut(shown, "?"); after != before {
			t.Errorf("the path %q becomes %q", path, shown)
		}
		for part := range strings.SplitSeq(raw, "&") {
			if name, value, _ := strings.Cut(part, "="); isCredential(unescape(name)) && len(value) > len(Redacted)+8 && strings.Contains(shown, name+"="+value) {
				t.Errorf("%q shows %q", shown, part)
			}
		}
		for _, p := range query {
			if isCredential(p.Name) && p.Value != "" && p.Value != Redacted {
				t.Errorf("%+v", p)
			}
		}
		if whole, _ := (redaction{credentials: true}).path(path); whole != path {
			t.Errorf("%q becomes %q with credentials", path, whole)
		}
		_, _ = url.Parse(shown)
	})
}
