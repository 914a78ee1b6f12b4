package proxy_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/internal/memory"
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

// certificate is the beginning of a handshake message of type certificate with a length of 252 KiB, which crypto/tls would
// buffer as a whole.
func certificate() []byte { return append([]byte{11, 3, 0xf0, 0}, make([]byte, 96<<10)...) }

// lies is the connection of a client that answers the server's flight of a handshake with the beginning of a certificate.
type lies struct {
	net.Conn
	writes int
}

func (l *lies) Write(b []byte) (int, error) {
	if l.writes++; l.writes == 1 {
		return l.Conn.Write(b)
	}
	for part := range slices.Chunk(certificate(), 16<<10) {
		_, _ = l.Conn.Write(append([]byte{22, 3, 3, byte(len(part) >> 8), byte(len(part))}, part...))
	}
	return len(b), nil
}

// sealed returns records with the beginning of a certificate, encrypted with the key of a TLS 1.3 client that has sent no
// other data.
func sealed(t *testing.T, keyLog string) (records []byte) {
	t.Helper()
	_, text, _ := strings.Cut(keyLog, "CLIENT_TRAFFIC_SECRET_0 ")
	text, _, _ = strings.Cut(text, "\n")
	_, text, _ = strings.Cut(text, " ")
	secret, err := hex.DecodeString(text)
	if err != nil || len(secret) != sha256.Size {
		t.Fatalf("secret %q: %v", text, err)
	}
	expand := func(label string, n int) []byte {
		label = "tls13 " + label
		out, err := hkdf.Expand(sha256.New, secret, string([]byte{0, byte(n), byte(len(label))})+label+"\x00", n)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	block, err := aes.NewCipher(expand("key", 16))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	iv, n := expand("iv", 12), uint64(0)
	for part := range slices.Chunk(certificate(), 8<<10) {
		nonce := bytes.Clone(iv)
		binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(iv[4:])^n)
		n++
		length := len(part) + 1 + aead.Overhead()
		head := []byte{23, 3, 3, byte(length >> 8), byte(length)}
		records = append(append(records, head...), aead.Seal(nil, nonce, append(bytes.Clone(part), 22), head)...)
	}
	return records
}

// TestAttackLongHandshakeMessages: a client that begins a handshake message of 252 KiB, during or after the handshake, is
// charged for the data that the gateway may buffer, and loses the connection.
func TestAttackLongHandshakeMessages(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]uint16{"during the handshake": tls.VersionTLS12, "after it": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			budget := memory.New(64<<20, 64<<20)
			k := keep(t, budget) // a control with a regular handshake
			if err := k.request(); err != nil {
				t.Fatal(err)
			}
			raw := proxytest.DialTo(t, k.at)
			var keys bytes.Buffer
			cfg := &tls.Config{ServerName: cdn, RootCAs: k.BoxCA.Pool(), MaxVersion: version, KeyLogWriter: &keys, NextProtos: []string{"http/1.1"}}
			if version == tls.VersionTLS12 {
				_ = tls.Client(&lies{Conn: raw}, cfg).Handshake()
			} else {
				c := tls.Client(raw, cfg)
				if err := c.Handshake(); err != nil {
					t.Fatal(err)
				}
				if suite := c.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
					t.Skipf("the cipher suite is %s", tls.CipherSuiteName(suite))
				}
				_, _ = raw.Write(sealed(t, keys.String()))
			}
			k.Want("the end of the connection", func(e audit.Event) bool { return strings.Contains(e.Error, "handshake that is too long") })
		})
	}
}

// table is a table of a Markdown page: the column headings except the first, and the cells by the first cell of their row.
type table struct {
	head  []string
	cells map[string][]string
}

// section returns the text below a heading.
func section(page, heading string) string {
	_, below, _ := strings.Cut(page, heading+"\n")
	below, _, _ = strings.Cut(below, "\n## ")
	return below
}

// tableOf parses the table whose first line begins with begin, and drops backquotes. A row may list several first cells,
// separated by " · ".
func tableOf(t *testing.T, page, begin string) table {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+begin)
	if !found {
		t.Fatalf("no table %q", begin)
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	out := table{cells: map[string][]string{}}
	for i, line := range strings.Split(strings.TrimSpace(begin+rest), "\n") {
		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, "`", ""), "| "), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch i {
		case 0:
			out.head = cells[1:]
		case 1:
		default:
			if len(cells) != len(out.head)+1 {
				t.Fatalf("the row %q has %d cells", line, len(cells))
			}
			for key := range strings.SplitSeq(cells[0], " · ") {
				out.cells[key] = cells[1:]
			}
		}
	}
	return out
}
