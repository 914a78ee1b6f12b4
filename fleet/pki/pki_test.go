package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/policy/name"
)

// world is a fleet with a directory of keys.
type world struct {
	t         *testing.T
	authority *Authority
	directory map[string][]byte
}

func newWorld(t *testing.T) *world {
	t.Helper()
	a, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, a, map[string][]byte{}}
}

// host makes a key for a host, in the directory, and a certificate by an authority.
func (w *world) host(id string, by *Authority, now time.Time) *tls.Certificate {
	w.t.Helper()
	der, fingerprint, err := NewHostKey()
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := parseKey(der)
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := by.Issue(id, key, now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.directory[id] = fingerprint
	return cert
}

func (w *world) peers() Peers {
	return Peers{w.authority.cert, func(host string) ([]byte, bool) { f, ok := w.directory[host]; return f, ok }}
}

// handshake connects a client that wants to reach host b, and returns the errors of both sides.
func (w *world) handshake(client, server *tls.Certificate) (atClient, atServer error) {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer ln.Close()
	served := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err == nil {
			defer c.Close()
			s := tls.Server(c, w.peers().Server(func() (*tls.Certificate, error) { return server, nil }))
			if err = s.Handshake(); err == nil {
				_, err = s.Write([]byte("hello"))
			}
		}
		served <- err
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	conn := tls.Client(c, w.peers().Client(func() (*tls.Certificate, error) { return client, nil }, "bbbbbb"))
	if atClient = conn.Handshake(); atClient == nil {
		_, atClient = conn.Read(make([]byte, 5)) // the server refuses after the client's handshake
	}
	c.Close()
	return atClient, <-served
}

// TestHostsTrustMembersAlone: both sides of a connection must be members with the keys of the directory.
func TestHostsTrustMembersAlone(t *testing.T) {
	w := newWorld(t)
	foreign, err := NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a, b := w.host("aaaaaa", w.authority, now), w.host("bbbbbb", w.authority, now)
	if client, server := w.handshake(a, b); client != nil || server != nil {
		t.Fatalf("two members: %v, %v", client, server)
	}
	removed := w.host("cccccc", w.authority, now)
	delete(w.directory, "cccccc")
	strange := w.host("dddddd", foreign, now)
	expired := w.host("eeeeee", w.authority, now.Add(-HostLifetime-time.Minute))
	right := w.directory["aaaaaa"]
	forged := w.host("aaaaaa", w.authority, now) // by a host that left with the authority's key
	w.directory["aaaaaa"] = right
	for name, cert := range map[string]*tls.Certificate{
		"a removed host": removed, "a certificate of another authority": strange, "an expired certificate": expired, "a certificate for the ID of another host": forged, "no certificate": {},
	} {
		if _, server := w.handshake(cert, b); server == nil {
			t.Errorf("the server accepts %s", name)
		}
		if client, _ := w.handshake(a, cert); client == nil {
			t.Errorf("the client accepts %s", name)
		}
	}
	if client, _ := w.handshake(b, a); client == nil || !strings.Contains(client.Error(), "instead of host bbbbbb") {
		t.Errorf("another member answers: %v", client)
	}
}

// TestHostCertificates: a certificate is valid for a day, for one host, and cannot sign.
func TestHostCertificates(t *testing.T) {
	w := newWorld(t)
	now := time.Now()
	leaf := w.host("aaaaaa", w.authority, now).Leaf
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "urn:boxgate:aaaaaa" || leaf.IsCA || leaf.NotAfter.Sub(now) > 24*time.Hour || leaf.Subject.String() != "" {
		t.Errorf("%v, CA %v, until %v, subject %q", leaf.URIs, leaf.IsCA, leaf.NotAfter, leaf.Subject)
	}
	if id, err := HostOf(leaf); id != "aaaaaa" || err != nil {
		t.Error(id, err)
	}
	u := leaf.URIs[0]
	for name, cert := range map[string]*x509.Certificate{
		"two hosts": {URIs: []*url.URL{u, u}}, "a DNS name too": {URIs: []*url.URL{u}, DNSNames: []string{"x"}}, "an authority": {URIs: []*url.URL{u}, IsCA: true},
		"another scheme": {URIs: []*url.URL{{Scheme: "spiffe", Opaque: u.Opaque}}}, "no host": {URIs: []*url.URL{{Scheme: "urn", Opaque: urnPrefix}}}, "none": {},
	} {
		if id, err := HostOf(cert); err == nil {
			t.Errorf("%s: %q", name, id)
		}
	}
}

// TestSealedValues: a value opens with the right key at its own place alone.
func TestSealedValues(t *testing.T) {
	id, recipient, err := NewWrapKey()
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := NewWrapKey()
	if err != nil {
		t.Fatal(err)
	}
	value := name.NewSecret("the value")
	text, err := Seal(recipient, "/a", value)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Open(id, "/a", text); err != nil || !got.Equal(value) {
		t.Error(got, err)
	}
	token, second := NewToken(), NewToken()
	byToken, err := token.Seal("/a", value)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := token.Open("/a", byToken); err != nil || !got.Equal(value) {
		t.Error(got, err)
	}
	for name, open := range map[string]func() (name.Secret, error){
		"another place": func() (name.Secret, error) { return Open(id, "/b", text) }, "another host": func() (name.Secret, error) { return Open(other, "/a", text) },
		"damaged": func() (name.Secret, error) { return Open(id, "/a", text[:len(text)-1]) }, "another place of a token": func() (name.Secret, error) { return token.Open("/b", byToken) },
		"another token": func() (name.Secret, error) { return second.Open("/a", byToken) }, "short": func() (name.Secret, error) { return token.Open("/a", byToken[:10]) },
	} {
		if got, err := open(); !errors.Is(err, errSealed) || got.Reveal() != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if bytes.Contains(text, []byte("the value")) || bytes.Contains(byToken, []byte("the value")) {
		t.Error("the value is in the clear")
	}
}

// TestTokens: the text of a token is read back, its ID does not depend on its spelling, and errors do not quote it.
func TestTokens(t *testing.T) {
	token := NewToken()
	text := token.Text().Reveal()
	got, err := ParseToken(" " + text + "\n")
	if err != nil || got.ID() != token.ID() || strings.Contains(text, token.ID()) {
		t.Error(err, got.ID(), token.ID())
	}
	for _, wrong := range []string{"", "bgfleet_", text[:len(text)-1], text + "A", strings.ToUpper(text), "bg_" + text} {
		if _, err := ParseToken(wrong); err == nil || len(wrong) > 20 && strings.Contains(err.Error(), wrong[8:]) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// FuzzParseToken: no text is read as a token that is written differently.
func FuzzParseToken(f *testing.F) {
	f.Add(NewToken().Text().Reveal())
	f.Add("bgfleet_")
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := ParseToken(text); err == nil && token.Text().Reveal() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %q", text, token.Text().Reveal())
		}
	})
}

// FuzzOpen: no bytes open that were not sealed.
func FuzzOpen(f *testing.F) {
	id, recipient, err := NewWrapKey()
	if err != nil {
		f.Fatal(err)
	}
	good, err := Seal(recipient, "/a", name.NewSecret("x"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := Open(id, "/a", text); err == nil && got.Reveal() != "x" {
			t.Errorf("%q opens as %q", text, got.Reveal())
		}
	})
}

// TestRotation: the certificate is renewed when a third of its time is left, or the clock was set back; without the authority's key the last one serves until it
// expires, and no longer.
func TestRotation(t *testing.T) {
	w := newWorld(t)
	der, _, err := NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	fail := errors.New("etcd is away")
	away := true
	r := NewRotation(Issuer{Host: "aaaaaa", HostKey: der, Authority: w.authority.PEM(), AuthorityKey: func(context.Context) (name.Secret, error) {
		if away {
			return name.Secret{}, fail
		}
		return w.authority.Key()
	}}, zap.NewNop())
	if _, err := r.Certificate(); !errors.Is(err, errNoCertificate) {
		t.Error(err)
	}
	if err := r.Renew(t.Context()); !errors.Is(err, fail) {
		t.Error(err)
	}
	away = false
	if err := r.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := r.Certificate()
	if err != nil || time.Until(r.NotAfter()) < HostLifetime-time.Minute {
		t.Fatal(err, r.NotAfter())
	}
	old := *first
	leaf := *first.Leaf
	old.Leaf = &leaf
	for name, left := range map[string]time.Duration{"a third is left": HostLifetime/3 - time.Minute, "the clock was two days ahead": HostLifetime + 48*time.Hour} {
		leaf.NotAfter = time.Now().Add(left)
		r.current.Store(&old)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		for deadline := time.Now().Add(time.Minute); r.current.Load() == &old; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the certificate was not renewed", name)
			}
		}
		cancel()
		<-done
	}
	leaf.NotBefore, leaf.NotAfter = time.Now().Add(time.Hour), time.Now().Add(48*time.Hour)
	r.current.Store(&old)
	if _, err := r.Certificate(); !errors.Is(err, errNoCertificate) {
		t.Errorf("a certificate that is not valid yet is used: %v", err)
	}
	leaf.NotBefore = time.Now().Add(-time.Hour)
	leaf.NotAfter = time.Now().Add(-time.Second)
	r.current.Store(&old)
	if _, err := r.Certificate(); !errors.Is(err, errNoCertificate) {
		t.Errorf("an expired certificate is used: %v", err)
	}
}

// TestForeignAuthority: a key that is not that of the certificate is refused, so that etcd alone cannot replace the authority.
func TestForeignAuthority(t *testing.T) {
	w := newWorld(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(w.authority.PEM(), name.NewSecret(string(der))); err == nil {
		t.Error("a foreign key was accepted")
	}
	own, err := w.authority.Key()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadAuthority(w.authority.PEM(), own); err != nil {
		t.Error(err)
	}
}
