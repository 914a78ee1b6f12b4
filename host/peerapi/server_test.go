package peerapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/fleet/pki"
)

// members is the directory of the fleet for one host.
type members struct {
	authority *pki.Authority
	cert      *x509.Certificate

	mu   sync.Mutex
	keys map[string][]byte // fingerprints by host
}

func newMembers(t *testing.T) *members {
	t.Helper()
	a, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.ParseCertificate(a.PEM())
	if err != nil {
		t.Fatal(err)
	}
	return &members{authority: a, cert: cert, keys: map[string][]byte{}}
}

// Peers implements [Identity].
func (m *members) Peers() pki.Peers {
	return pki.Peers{Authority: m.cert, Known: func(host string) ([]byte, bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		key, ok := m.keys[host]
		return key, ok
	}}
}

func (m *members) leave(host string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.keys, host)
}

// join makes a member, and returns its certificate.
func (m *members) join(t *testing.T, host string) func() (*tls.Certificate, error) {
	t.Helper()
	der, fingerprint, err := pki.NewHostKey()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatal("the key of a host has another kind")
	}
	cert, err := m.authority.Issue(host, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys[host] = fingerprint
	return func() (*tls.Certificate, error) { return cert, nil }
}

// owner is a host that accepts calls of others. Its API answers with the source of the call; at /wait it answers when release is closed or the call
// is cut.
type owner struct {
	members *members
	address string
	begun   chan struct{} // an element for each call to /wait
	release chan struct{}
	ended   chan error // why a call to /wait was cut
}

func newOwner(t *testing.T, most int) *owner {
	t.Helper()
	o := &owner{members: newMembers(t), begun: make(chan struct{}, 100), release: make(chan struct{}), ended: make(chan error, 100)}
	own := o.members.join(t, "aaaaaa")
	s := NewServer(ServerConfig{Fleet: o.members, Known: func(net.Conn) {}, Most: most, Refused: func() {}, Log: zap.NewNop(), API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			o.begun <- struct{}{}
			select {
			case <-o.release:
			case <-r.Context().Done():
				o.ended <- context.Cause(r.Context())
			}
		}
		source, _ := access.Peer(r.Context())
		_, _ = fmt.Fprint(w, source, "; ", r.Header.Values(access.PeerHeader), r.Header.Values(clientHeader))
	})})
	s.TLSConfig = o.members.Peers().Server(own)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.address = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return o
}

// caller returns a client of a member, whose connections are its own.
func (o *owner) caller(t *testing.T, cert func() (*tls.Certificate, error)) *http.Client {
	transport := &http.Transport{TLSClientConfig: o.members.Peers().Client(cert, "aaaaaa")}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// call returns the answer of the API, or why the call did not reach it.
func (o *owner) call(c *http.Client, path string, header http.Header) (text, refused string, err error) {
	r, err := http.NewRequest(http.MethodGet, "https://"+o.address+path, http.NoBody)
	if err != nil {
		return "", "", err
	}
	r.Header, r.Close = header, path == "/wait"
	resp, err := c.Do(r)
	if err != nil {
		return "", "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), resp.Header.Get(refusedHeader), err
}

// TestCallsOfAMemberAreMarked: whatever another host sends, its calls have its own ID once, so that they are not sent on, and the address that it
// vouches for is in the source alone.
func TestCallsOfAMemberAreMarked(t *testing.T) {
	t.Parallel()
	o := newOwner(t, 100)
	c := o.caller(t, o.members.join(t, "bbbbbb"))
	for want, header := range map[string]http.Header{
		"host bbbbbb; [bbbbbb] []":            {},
		"host bbbbbb, 192.0.2.1; [bbbbbb] []": {access.PeerHeader: {"cccccc", "dddddd"}, clientHeader: {"192.0.2.1", "192.0.2.2"}},
	} {
		if got, refused, err := o.call(c, "/", header); got != want || refused != "" || err != nil {
			t.Errorf("%q, want %q; %s, %v", got, want, refused, err)
		}
	}
}

// TestCallsOfAHostThatLeft: the calls of a host that left are refused over connections that were opened before, and its running calls end.
func TestCallsOfAHostThatLeft(t *testing.T) {
	t.Parallel()
	o := newOwner(t, 100)
	c := o.caller(t, o.members.join(t, "bbbbbb"))
	first := make(chan error, 1)
	go func() { _, _, err := o.call(c, "/wait", nil); first <- err }()
	<-o.begun
	other := o.caller(t, o.members.join(t, "cccccc"))
	open := o.caller(t, o.members.join(t, "bbbbbb")) // its certificate is that of a new key, which the directory has now
	if _, refused, err := o.call(open, "/", nil); refused != "" || err != nil {
		t.Fatal(refused, err)
	}
	select {
	case err := <-o.ended:
		if !errors.Is(err, errNoMember) {
			t.Errorf("the running call ended: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a call by a key that the host has no longer goes on")
	}
	<-first
	o.members.leave("bbbbbb")
	if got, refused, err := o.call(open, "/", nil); refused == "" && err == nil {
		t.Errorf("the call of a host that left is answered: %q", got)
	}
	if _, refused, err := o.call(other, "/", nil); refused != "" || err != nil {
		t.Errorf("another host: %s, %v", refused, err)
	}
}

// TestAttackFloodOfOneHost: a member that opens connections and calls without end holds half of the places, and the calls of another member are
// served. The places are free again when its calls have ended.
func TestAttackFloodOfOneHost(t *testing.T) {
	t.Parallel()
	const most = 16
	o := newOwner(t, most)
	hostile := o.members.join(t, "bbbbbb")
	refusals, answers := make(chan string, 4*most), make(chan error, 4*most)
	var calls sync.WaitGroup
	for range 4 * most {
		calls.Go(func() {
			_, refused, err := o.call(o.caller(t, hostile), "/wait", nil)
			if refused != "" {
				refusals <- refused
			} else {
				answers <- err
			}
		})
	}
	for range 4*most - most/2 {
		select {
		case why := <-refusals:
			if why != "too many calls of one host" {
				t.Error(why)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d calls of one host are served at a time, and there are %d places", len(o.begun), most)
		}
	}
	if n := len(o.begun); n != most/2 {
		t.Errorf("%d calls of one host run, of %d places", n, most)
	}
	honest := o.caller(t, o.members.join(t, "cccccc"))
	if _, refused, err := o.call(honest, "/", nil); refused != "" || err != nil {
		t.Errorf("another host: %s, %v", refused, err)
	}
	close(o.release)
	calls.Wait()
	for range most / 2 {
		if err := <-answers; err != nil {
			t.Errorf("an accepted call: %v", err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // its connections end
		_, refused, err := o.call(o.caller(t, hostile), "/", nil)
		if err != nil || refused != "" && time.Now().After(deadline) {
			t.Fatalf("after the flood: %s, %v", refused, err)
		}
		if refused == "" {
			break
		}
	}
}

// TestStreamsAreShared: one API key, and calls with tokens of boxes from one address or from all, have part of the streams to a host. Calls with
// admin keys find some, and streams to other hosts are counted apart.
func TestStreamsAreShared(t *testing.T) {
	t.Parallel()
	c := &Client{streams: map[string]*streams{}}
	fill := func(host string, by func(i int) holder) (n int, release func()) {
		var all []func()
		for i := range 2 * mostStreams {
			end, err := c.acquire(host, by(i))
			if err == nil {
				all = append(all, end)
			} else if !errors.Is(err, api.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		return len(all), func() {
			for _, end := range all {
				end()
			}
		}
	}
	as := func(role api.Role, key, address string) holder {
		return holderOf(api.WithCaller(t.Context(), api.Caller{Role: role, Key: key}), address)
	}
	one := func(int) holder { return as(api.RoleCreator, "key_1", "192.0.2.1") }
	n, ofKey := fill("bbbbbb", one)
	if n != holderStreams {
		t.Errorf("a key has %d streams", n)
	}
	n, ofAddress := fill("bbbbbb", func(i int) holder { return as("", "", fmt.Sprintf("2001:db8::%x", i)) }) // one customer
	if n != holderStreams {
		t.Errorf("an address has %d streams", n)
	}
	if n, _ = fill("bbbbbb", func(i int) holder { return as(api.RoleCreator, fmt.Sprint("key_", i), "") }); n != 0 {
		t.Errorf("%d streams beyond the share of all keys", n)
	}
	n, ofAdmins := fill("bbbbbb", func(int) holder { return as(api.RoleAdmin, "key_0", "") })
	if n != mostStreams-othersStreams {
		t.Errorf("admin keys have %d streams", n)
	}
	if n, end := fill("cccccc", one); n != holderStreams {
		t.Errorf("%d streams to another host", n)
	} else {
		end()
	}
	ofKey()
	ofAddress()
	ofAdmins()
	n, end := fill("bbbbbb", func(i int) holder { return as("", "", fmt.Sprintf("10.0.%d.%d", i/256, i%256)) })
	if n != keylessStreams {
		t.Errorf("calls with tokens have %d streams", n)
	}
	if end(); len(c.streams) != 0 {
		t.Errorf("streams are left: %v", c.streams)
	}
}
