package attack

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// echKeys returns an ECHConfigList of one X25519 key under a public name (RFC 9849, 4).
func echKeys(t *testing.T, publicName string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	contents := []byte{1, 0, 0x20, 0, 32}
	contents = append(contents, key.PublicKey().Bytes()...)
	contents = append(contents, 0, 4, 0, 1, 0, 1, 64, byte(len(publicName)))
	contents = append(append(contents, publicName...), 0, 0)
	config := append(binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(contents))), contents...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)
}

// TestAttackEncryptedClientHello hides the name of the host behind another: the outer name decides, and the connection
// goes to its host.
func TestAttackEncryptedClientHello(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	encrypted := func(outer, inner string) error {
		c := tls.Client(in.DialHost("www.example.com", 443), &tls.Config{
			ServerName: inner, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echKeys(t, outer),
			EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { return nil },
		})
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		defer cancel()
		return c.HandshakeContext(ctx)
	}
	since := time.Now()
	if err := encrypted("evil.example.net", "www.example.com"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("a foreign outer name: %v", err)
	}
	if e := in.Denied(since, policy.StageConn, name.ReasonNotAllowed); e.Name != "evil.example.net" {
		t.Errorf("decision %+v", e)
	}
	var rejected *tls.ECHRejectionError // the server lacks this key, and rejects it under its own certificate
	if err := encrypted("www.example.com", "evil.example.net"); !errors.As(err, &rejected) {
		t.Errorf("an allowed outer name: %v", err)
	}
	// The same where the gateway terminates TLS.
	if err := encrypted("api.example.com", "evil.example.net"); !errors.As(err, &rejected) {
		t.Errorf("an intercepted outer name: %v", err)
	}
	in.NothingReached("evil.example.net")

	// Clients of the box get no ECH keys, and no hint at QUIC.
	if err := in.Net.SetRecords("www.example.com", "www.example.com. 60 IN HTTPS 1 . alpn=h3,h2 ech="+
		base64.StdEncoding.EncodeToString(echKeys(t, "www.example.com"))); err != nil {
		t.Fatal(err)
	}
	c, err := in.Connect(netip.MustParseAddrPort(in.DNS))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn := &mdns.Conn{Conn: c}
	if err := conn.WriteMsg(new(mdns.Msg).SetQuestion("www.example.com.", mdns.TypeHTTPS)); err != nil {
		t.Fatal(err)
	}
	answer, err := conn.ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	if text := answer.String(); strings.Contains(text, "ech=") || strings.Contains(text, "h3") || !strings.Contains(text, "h2") {
		t.Errorf("the box was told: %s", text)
	}
}

// TestAttackSilenceAndGarbage holds connections open with incomplete or endless first messages.
func TestAttackSilenceAndGarbage(t *testing.T) {
	t.Parallel()
	const deadline = 2 * time.Second
	in := secretWorld(t, func(c *config.Config) { c.Limits.PeekTimeout = deadline })
	whole := hello{0x303, []uint16{0x304}, []string{"www.example.com"}, false}.String()
	address := netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 443)
	explicit := netip.MustParseAddrPort("10.200.0.1:3128")
	proxied := policy.StageConn

	// The deadline is for the whole message: sending it byte by byte gains no time.
	slow := map[string]struct {
		to    netip.AddrPort
		text  string
		stage policy.Stage
	}{
		"nothing on 443":           {address, "", proxied},
		"nothing on 80":            {netip.AddrPortFrom(address.Addr(), 80), "", proxied},
		"the first byte":           {address, whole[:1], proxied},
		"all but the last byte":    {address, whole[:len(whole)-1], proxied},
		"half a request line":      {netip.AddrPortFrom(address.Addr(), 80), "GET / HT", proxied},
		"nothing to the proxy":     {explicit, "", proxied},
		"half a CONNECT":           {explicit, "CONNECT www.exam", proxied},
		"a CONNECT without an end": {explicit, "CONNECT www.example.com:443 HTTP/1.1\r\nHost: www", proxied},
	}
	began := time.Now()
	conns := map[string]net.Conn{}
	for name, s := range slow {
		c := in.Dial(s.to)
		conns[name] = c
		go func() {
			pace := time.NewTicker(deadline * 3 / 4) // a part now and then, for longer than the deadline
			defer pace.Stop()
			for i := range s.text {
				if _, err := io.WriteString(c, s.text[i:i+1]); err != nil {
					return
				}
				if i%100 == 99 {
					<-pace.C
				}
			}
		}()
	}
	for label, endless := range map[string]struct {
		to     netip.AddrPort
		first  string
		rest   string
		reason name.Reason
	}{
		"bytes":              {address, "", "\x00garbage", name.ReasonNoName},
		"hello of 64 KiB":    {address, "\x16\x03\x01\x40\x00\x01\x00\xff\xf8", strings.Repeat("\x16", 16380) + "\x16\x03\x01\x3f\xfc", name.ReasonPeekSize},
		"request line":       {netip.AddrPortFrom(address.Addr(), 80), "GET /", "aaaaaaaaaaaaaaaa", name.ReasonPeekSize},
		"to the proxy":       {explicit, "", "\x00garbage", name.ReasonProtocol},
		"line to the proxy":  {explicit, "CONNECT ", "aaaaaaaaaaaaaaaa", name.ReasonPeekSize},
		"TLS to the proxy":   {explicit, whole, whole, name.ReasonProtocol},
		"method without end": {netip.AddrPortFrom(address.Addr(), 80), "", "AAAAAAAAAAAAAAAA", name.ReasonNoName},
	} {
		t.Run("endless "+label, func(t *testing.T) {
			in := in.On(t)
			since := time.Now()
			c := in.Dial(endless.to)
			_ = c.SetDeadline(time.Now().Add(harness.Patience))
			n, err := io.WriteString(c, endless.first)
			more := strings.Repeat(endless.rest, 1+(64<<10)/len(endless.rest))
			for taken := n; err == nil; taken += n {
				if taken > 64<<20 { // more than the buffers of both sockets
					t.Fatalf("%d bytes were taken", taken)
				}
				n, err = io.WriteString(c, more)
			}
			in.Denied(since, policy.StageConn, endless.reason)
		})
	}
	for name, c := range conns {
		answer, reset := harness.SendAndReadAll(c, "")
		if took := time.Since(began); took < deadline*8/10 || took > deadline+20*time.Second {
			t.Errorf("%s ended after %v with %q (reset: %v)", name, took, answer, reset)
		}
	}
	in.Until("the decisions say peek_timeout", func() bool {
		timeouts := 0
		for _, e := range in.Events(in.Box) {
			if e.Reason == name.ReasonPeekTimeout && e.Verdict == policy.Deny {
				timeouts += int(max(e.Count, 1))
			}
		}
		return timeouts == len(slow)
	})
	in.NothingReached("www.example.com")
}
