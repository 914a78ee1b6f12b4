package proxy

import (
	"bytes"
	"net/http"
	"testing"

	"boxgate/policy"
	"boxgate/proxy/scrub"
)

type fixedToken struct{}

func (fixedToken) Token(policy.BoxID, string, string) (policy.Secret, error) {
	return policy.NewSecret("token-of-the-gateway"), nil
}

// TestAttackForgedForwardingHeadersOnACompressedBody: a body that is read before it is sent does not open a way for what the
// box says of the request. A rule may be of nothing but the URL.
func TestAttackForgedForwardingHeadersOnACompressedBody(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, l *rig, client *http.Client, port uint16, up *recorder) {
		l.with(func(c *Config) { c.Tokens = fixedToken{} })
		l.rules(allowAll, `{"`+hostPort(port)+`": {"forward_url": "https://`+hostPort(port)+`/in"}, "elsewhere.test": {"placeholders": {"KEY": "value"}}}`)
		packed, err := scrub.Encoded([]string{"gzip"}, []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		status, text := send(t, client, "POST", "https://"+hostPort(port)+"/a", http.Header{
			"Content-Encoding": {"gzip"}, "Vercel-Forwarded-Host": {"evil.test"}, "Vercel-Sandbox-Oidc-Token": {"forged"},
		}, bytes.NewReader(packed))
		got, _ := up.take()
		if status != 200 || got == nil {
			t.Fatal(status, text)
		}
		hosts, tokens := got.Header.Values("Vercel-Forwarded-Host"), got.Header.Values("Vercel-Sandbox-Oidc-Token")
		if got.RequestURI != "/in/a" || len(hosts) != 1 || hosts[0] == "evil.test" || len(tokens) != 1 || tokens[0] != "token-of-the-gateway" {
			t.Errorf("%s, of %q with %q", got.RequestURI, hosts, tokens)
		}
	})
}
