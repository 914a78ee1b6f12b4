package legacytls_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"boxgate/certs"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestAttackOldClients: a client without current cipher suites is accepted only where the rule of the host and port has client_tls: legacy,
// with a leaf for key exchange. Its session is resumed neither at another port, nor after the option was removed, nor by another box.
func TestAttackOldClients(t *testing.T) {
	t.Parallel()
	var leaves certs.Minter
	roots := x509.NewCertPool()
	for _, box := range []policy.BoxID{"box1", "box2"} {
		ca, err := certs.NewCA(string(box))
		if err != nil {
			t.Fatal(err)
		}
		if err := leaves.Add(box, ca); err != nil {
			t.Fatal(err)
		}
		roots.AddCert(ca.Certificate())
	}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Leaves = &leaves })
	other := l.NewBox("box2", "127.0.0.2")
	_, one := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	_, two := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	l.Names.SetOthers(proxytest.Loopback)
	rules := func(option string) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(one)+`": {"headers": {"X-Key": "literal"}`+option+`}, "`+proxytest.HostPort(two)+`": {"headers": {"X-Key": "literal"}}}`)
	}
	rules(`, "client_tls": "legacy"`)
	other.Policy.Store(l.Box.Policy.Load())
	old := []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_128_CBC_SHA256}
	session := &lastSession{}
	connect := func(box *policy.Box, port uint16, suites ...uint16) (tls.ConnectionState, error) {
		from := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(box.V4, 0)), Timeout: time.Minute}
		raw, err := from.Dial("tcp", l.Front(netip.AddrPortFrom(proxytest.Loopback, port)))
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Client(raw, &tls.Config{ServerName: proxytest.API, RootCAs: roots, MaxVersion: tls.VersionTLS12, CipherSuites: suites, ClientSessionCache: session})
		err = c.Handshake()
		return c.ConnectionState(), err
	}
	for _, resumed := range []bool{false, true} {
		state, err := connect(l.Box, one, old...)
		if err != nil || state.CipherSuite != old[0] || state.DidResume != resumed || state.PeerCertificates[0].KeyUsage&x509.KeyUsageKeyEncipherment == 0 {
			t.Fatalf("under the rule: %s, resumed %v, %v", tls.CipherSuiteName(state.CipherSuite), state.DidResume, err)
		}
	}
	if state, err := connect(other, one, old...); err != nil || state.DidResume {
		t.Errorf("another box resumes the session: %v, %v", state.DidResume, err)
	}
	if state, err := connect(l.Box, one, append([]uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, old...)...); err != nil || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 {
		t.Errorf("a client with a current suite: %s, %v", tls.CipherSuiteName(state.CipherSuite), err)
	}
	if state, err := connect(l.Box, one, old...); err != nil { // the last session is again one of an old suite
		t.Errorf("%s, %v", tls.CipherSuiteName(state.CipherSuite), err)
	}
	if state, err := connect(l.Box, two, old...); err == nil {
		t.Errorf("another port without the option accepts %s", tls.CipherSuiteName(state.CipherSuite))
	}
	rules("")
	if state, err := connect(l.Box, one, old...); err == nil {
		t.Errorf("after the option was removed, %s is accepted", tls.CipherSuiteName(state.CipherSuite))
	}
}

// TestOldClientsAreCutWithTheRule: an idle connection with an old cipher suite ends when its rule loses client_tls: legacy, or is removed.
// Connections with current suites go on, and so do old ones when another part of the rule changes.
func TestOldClientsAreCutWithTheRule(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	l.Names.SetOthers(proxytest.Loopback)
	rules := func(rule string) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": `+rule+`}`)
		l.Proxy.Recheck(l.Box.ID)
	}
	connect := func(suite uint16) *tls.Conn {
		c := tls.Client(l.Dial(netip.AddrPortFrom(proxytest.Loopback, port)), &tls.Config{ServerName: proxytest.API, RootCAs: l.BoxCA.Pool(), MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}})
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	ask := func(c *tls.Conn) error {
		if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n")); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	const key, legacy = `{"headers": {"X-Key": "literal"}}`, `{"headers": {"X-Key": "literal"}, "client_tls": "legacy"}`
	for what, removed := range map[string]string{"without the option": key, "without the rule": `{"headers": {"X-Key": "literal"}, "upstream_tls": "legacy"}`} {
		rules(legacy)
		old := connect(tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256)
		current := connect(tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
		if err := errors.Join(ask(old), ask(current)); err != nil {
			t.Fatal(err)
		}
		rules(`{"headers": {"X-Key": "another"}, "client_tls": "legacy"}`)
		if err := ask(old); err != nil {
			t.Errorf("%s: cut although the option stays: %v", what, err)
		}
		rules(removed)
		if _, err := old.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", what, err)
		}
		_ = current.SetDeadline(time.Now().Add(time.Minute))
		if err := ask(current); err != nil {
			t.Errorf("%s: a current suite: %v", what, err)
		}
	}
}

// lastSession returns the last session of any server.
type lastSession struct{ last *tls.ClientSessionState }

func (s *lastSession) Get(string) (*tls.ClientSessionState, bool) { return s.last, s.last != nil }
func (s *lastSession) Put(_ string, cs *tls.ClientSessionState)   { s.last = cs }
