package exchange_test

import (
	"bytes"
	"net/http"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
)

type fixedToken struct{}

func (fixedToken) Token(policy.BoxID, string, string) (name.Secret, error) {
	return name.NewSecret("token-of-the-gateway"), nil
}

// TestAttackForgedForwardingHeadersOnACompressedBody: a body that is read before it is sent does not open a way for what the
// box says of the request. A rule may be of nothing but the URL.
func TestAttackForgedForwardingHeadersOnACompressedBody(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.With(func(c *proxy.Config) { c.Tokens = fixedToken{} })
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"forward_url": "https://`+proxytest.HostPort(port)+`/in"}, "elsewhere.test": {"placeholders": {"KEY": "value"}}}`)
		packed, err := scrub.Encoded([]string{"gzip"}, []byte("text"))
		if err != nil {
			t.Fatal(err)
		}
		status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/a", http.Header{
			"Content-Encoding": {"gzip"}, "Vercel-Forwarded-Host": {"evil.test"}, "Vercel-Sandbox-Oidc-Token": {"forged"},
		}, bytes.NewReader(packed))
		got, _ := up.Take()
		if status != 200 || got == nil {
			t.Fatal(status, text)
		}
		hosts, tokens := got.Header.Values("Vercel-Forwarded-Host"), got.Header.Values("Vercel-Sandbox-Oidc-Token")
		if got.RequestURI != "/in/a" || len(hosts) != 1 || hosts[0] == "evil.test" || len(tokens) != 1 || tokens[0] != "token-of-the-gateway" {
			t.Errorf("%s, of %q with %q", got.RequestURI, hosts, tokens)
		}
	})
}
