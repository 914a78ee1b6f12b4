package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Suites without authenticated encryption or forward secrecy, and versions before TLS 1.2, are refused.
func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for name, c := range map[string]struct {
		config *tls.Config
		works  bool
	}{
		"CBC": {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,
		}}, false},
		"TLS 1.1": {&tls.Config{MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11}, false},
		"TLS 1.2": {&tls.Config{MaxVersion: tls.VersionTLS12}, true},
		"TLS 1.3": {&tls.Config{}, true},
	} {
		config := c.config.Clone()
		config.RootCAs, config.ServerName = f.roots, "one"+domain
		if err := tls.Client(f.dial(t, f.https), config).Handshake(); (err == nil) != c.works {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A session can be resumed for hours, but not after a day.
func TestTicketsLastADay(t *testing.T) {
	cert := wildcard(t, x509.NewCertPool())
	synctest.Test(t, func(t *testing.T) {
		server := tlsConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil })
		defer keepTicketsFresh(server)()
		client := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, ServerName: "one" + domain, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		resumed := func() bool {
			c, s := net.Pipe()
			defer c.Close()
			defer s.Close()
			go func() { _ = tls.Server(s, server).Handshake() }()
			conn := tls.Client(c, client)
			if err := conn.Handshake(); err != nil {
				t.Fatal(err)
			}
			return conn.ConnectionState().DidResume
		}
		if resumed() {
			t.Error("there was nothing to resume")
		}
		time.Sleep(7 * time.Hour)
		if !resumed() {
			t.Error("a session is not resumed")
		}
		time.Sleep(25 * time.Hour)
		if resumed() {
			t.Error("a session is resumed after a day")
		}
	})
}
