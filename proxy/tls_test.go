package proxy_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/origin"
	"boxgate/proxy/proxytest"
)

// handshakes terminates one connection of the box as name and returns the results of both sides.
func handshakes(r *proxytest.Rig, cfg *tls.Config, name name.Name) (client tls.ConnectionState, clientErr, serverErr error) {
	r.T.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.T.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		defer raw.Close()
		c, err := proxy.Terminate(r.Proxy, r.Box, raw, name, nil)
		if err == nil {
			_, err = c.Write([]byte("x")) // delivers the session ticket of TLS 1.3 with it
		}
		done <- err
	}()
	c := tls.Client(proxytest.DialTo(r.T, ln.Addr().String()), cfg)
	if _, clientErr = c.Read(make([]byte, 1)); clientErr == nil {
		client = c.ConnectionState()
	}
	c.NetConn().Close()
	return client, clientErr, <-done
}

func TestTicketsResumeTheirOwnNameAlone(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("*.example"))
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := &oneSession{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
		cfg := &tls.Config{ServerName: "a.example", RootCAs: r.BoxCA.Pool(), ClientSessionCache: cache, MaxVersion: version}
		resumed := func(name string) bool {
			t.Helper()
			// A malicious client that reuses a session of one name for another; an honest one would not.
			cfg.ServerName, cfg.InsecureSkipVerify = name, true
			state, err, serverErr := handshakes(r, cfg, proxytest.MustName(t, name))
			if err != nil || serverErr != nil {
				t.Fatalf("%s: %v, %v", name, err, serverErr)
			}
			return state.DidResume
		}
		if resumed("a.example") {
			t.Error("the first connection resumed something")
		}
		if !resumed("a.example") {
			t.Error("the same name was not resumed")
		}
		if resumed("b.example") {
			t.Error("a ticket of a.example was resumed for b.example")
		}
	}
}

// oneSession returns the last session, whatever the name.
type oneSession struct{ tls.ClientSessionCache }

func (s *oneSession) Get(string) (*tls.ClientSessionState, bool) { return s.ClientSessionCache.Get("") }
func (s *oneSession) Put(_ string, cs *tls.ClientSessionState)   { s.ClientSessionCache.Put("", cs) }

func TestATicketOfOneBoxMeansNothingToAnother(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("*.example"))
	cfg := &tls.Config{ServerName: "a.example", RootCAs: r.BoxCA.Pool(), ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	if _, err, _ := handshakes(r, cfg, proxytest.MustName(t, "a.example")); err != nil {
		t.Fatal(err)
	}
	r.Box = &policy.Box{ID: "box2"}
	if state, err, _ := handshakes(r, cfg, proxytest.MustName(t, "a.example")); err != nil || state.DidResume {
		t.Errorf("resumed %v, %v", state.DidResume, err)
	}
}

// TestATicketOutlivesNoPolicy resumes an intercepted session under later policies: one that splices the name connects to
// its owner, one that denies it sends the alert.
func TestATicketOutlivesNoPolicy(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example"))
	owner := r.TLSServer("a.example")
	r.Names.Set("a.example", owner.Addr())
	cfg := &tls.Config{
		ServerName: "a.example", InsecureSkipVerify: true, NextProtos: []string{"http/1.1"},
		ClientSessionCache: &oneSession{ClientSessionCache: tls.NewLRUClientSessionCache(1)},
	}
	connect := func() (tls.ConnectionState, error) {
		c := tls.Client(r.Dial(owner), cfg)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
			return tls.ConnectionState{}, err
		}
		_, err := c.Read(make([]byte, 1)) // delivers the ticket with it
		_ = c.NetConn().Close()
		return c.ConnectionState(), err
	}
	r.Policy(proxytest.Allow("a.example"), map[string]map[string]string{"a.example": {"X-Key": "k"}})
	for i := range 2 {
		if state, err := connect(); err != nil || state.DidResume != (i > 0) || state.PeerCertificates[0].CheckSignatureFrom(r.BoxCA.Cert) != nil {
			t.Fatalf("intercepted connection %d: resumed %v, %v", i+1, state.DidResume, err)
		}
	}
	r.Policy(policy.Spec{Mode: policy.ModeDenyAll}, map[string]map[string]string{"a.example": {"X-Key": "k"}})
	if _, err := connect(); !proxytest.AccessDeniedAlert(err) {
		t.Errorf("with a ticket to a name that is denied now: %v", err)
	}
	r.Policy(proxytest.Allow("a.example"), nil)
	state, err := connect()
	if err != nil || state.DidResume || state.PeerCertificates[0].CheckSignatureFrom(r.Upstream.Cert) != nil {
		t.Errorf("with a ticket to a name that is spliced now: resumed %v, %v", state.DidResume, err)
	}
}

func TestTerminationIsForTheNameThatWasJudged(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("*.example"))
	_, _, err := handshakes(r, &tls.Config{ServerName: "b.example", RootCAs: r.BoxCA.Pool()}, proxytest.MustName(t, "a.example"))
	if !errors.Is(err, origin.ErrNoName) {
		t.Errorf("%v", err)
	}
	if _, err, _ := handshakes(r, &tls.Config{ServerName: "a.example", RootCAs: r.BoxCA.Pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, proxytest.MustName(t, "a.example")); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

// TestABoxMayTakeAsLongForItsHandshakeAsForItsFirstMessage: a longer limits.peek_timeout for slow boxes applies to the
// whole handshake. Without that, the connection is cut.
func TestABoxMayTakeAsLongForItsHandshakeAsForItsFirstMessage(t *testing.T) {
	t.Parallel()
	const short = 50 * time.Millisecond
	begin := func(peek time.Duration) (c *tls.Conn, answered, goOn chan struct{}) {
		r := proxytest.New(t, proxytest.Allow("a.example"), func(c *proxy.Config) { c.HandshakeTimeout, c.PeekTimeout = short, peek })
		trap := r.Trap(443)
		r.Policy(proxytest.Allow("a.example"), map[string]map[string]string{"a.example": {"Authorization": "x"}})
		answered, goOn = make(chan struct{}), make(chan struct{})
		return tls.Client(r.Dial(trap), &tls.Config{ServerName: "a.example", InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error {
			close(answered)
			<-goOn
			return nil
		}}), answered, goOn
	}
	slow, answered, goOn := begin(time.Minute)
	done := make(chan error, 1)
	go func() { done <- slow.Handshake() }()
	<-answered
	cut, answered, never := begin(short)
	ended := make(chan error, 1)
	go func() { ended <- cut.Handshake() }()
	select {
	case <-answered:
	case <-ended: // immediately, on a busy machine
	}
	if _, err := io.Copy(io.Discard, cut.NetConn()); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the control is not cut: %v", err)
	} // so the time has passed for the other one as well
	close(never)
	close(goOn)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(slow, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if n, err := slow.Read(make([]byte, 1)); n != 1 {
		t.Errorf("the slow box gets no answer: %v", err)
	}
}
