package origin_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"strings"
	"testing"

	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestAlertsOfServers: if a server ends the connection with a TLS alert, the error explains the alert, even if it arrives after
// the gateway has completed the handshake.
func TestAlertsOfServers(t *testing.T) {
	t.Parallel()
	both := []string{"h2", "http/1.1"}
	for what, test := range map[string]struct {
		config *tls.Config
		want   string
	}{
		"no certificate, 1.3":      {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAnyClientCert}, "the server asks for a client certificate"},
		"no certificate, 1.3, h1":  {&tls.Config{NextProtos: both[1:], ClientAuth: tls.RequireAnyClientCert}, "the server asks for a client certificate"},
		"no certificate, 1.2":      {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, "or it asks for a client certificate"},
		"a certificate of another": {&tls.Config{NextProtos: both, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}, "the server does not accept the client certificate"},
		"an old version":           {&tls.Config{NextProtos: both, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "the server offers TLS 1.1 at most; the gateway needs TLS 1.2 or 1.3"},
		"no cipher suite":          {&tls.Config{NextProtos: both, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_RC4_128_SHA}}, "no way to encrypt in common"},
		"no protocol":              {&tls.Config{NextProtos: []string{"imap"}}, "the server does not speak the protocol of the request"},
		"anything else, 1.3":       {&tls.Config{NextProtos: both, CurvePreferences: []tls.CurveID{tls.CurveP521}, GetConfigForClient: noConfig}, "the server refused the TLS handshake"},
		"what is not an alert":     {nil, "the server closed the connection"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			if test.config != nil {
				test.config.GetCertificate = l.Upstream.ForHello
			}
			port := l.RawListen(nil, func(c net.Conn, r *bufio.Reader) {
				if test.config == nil {
					_, _ = r.ReadByte()
					return
				}
				if _, err := tls.Server(c, test.config).Read(make([]byte, 1)); err == nil {
					t.Error("the server was sent a request")
				}
				_, _ = io.Copy(io.Discard, c) // closing with unread data would reset the connection and discard the alert
			})
			identity := proxytest.IdentityText(t, l.Upstream.Certificate(t, "client"))
			l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"identity": proxytest.Fixed(identity)} })
			if l.Policy(proxytest.AllowAll, proxytest.Intercepted(port)); strings.HasPrefix(what, "a certificate") {
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {}, "client_certificate": {"certificate": {"secret": "identity"}, "key": {"secret": "identity"}}}}`)
			}
			for _, h2 := range []bool{false, true} {
				res, text := proxytest.Get(t, l.HTTPClientLater(port, h2), "https://"+proxytest.HostPort(port)+"/", nil)
				if res.StatusCode != 502 || !strings.Contains(text, test.want) {
					t.Errorf("h2 %v: %d %s", h2, res.StatusCode, text)
				}
			}
		})
	}
}

func noConfig(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, io.ErrNoProgress }
