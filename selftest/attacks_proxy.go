package selftest

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/probe"
)

// explicit adds attacks through the explicit proxy, which must decide like any other way out.
func (b *builder) explicit(s *side) {
	stranger := netip.AddrPortFrom(s.stranger(), 443)
	b.connectTo(s, "CONNECT to an address not allowed", stranger, func(a *attack) { a.exclusive = true })
	metadata := netip.AddrPortFrom(netip.MustParseAddr("169.254.169.254"), 80)
	if s.box.Is6() {
		metadata = netip.MustParseAddrPort("[fd00:ec2::254]:80")
	}
	b.connectTo(s, "CONNECT to cloud metadata", metadata, nil)
	for _, c := range s.canaries {
		b.connectTo(s, "CONNECT to the host", netip.AddrPortFrom(c.At, c.Port), func(a *attack) { a.canary = c })
	}
	b.add(s, "explicit proxy", "CONNECT to a name not allowed", "", func(a *attack) {
		host := string(a.task.Token) + noSuchName
		n, err := name.Parse(host)
		if err != nil {
			a.skip("%s is no name", host)
			return
		}
		a.Target = host + ":443"
		a.send(connect(b.proxyOf(s), fmt.Appendf(nil, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", a.Target, a.Target)))
		b.expectDenial(a, policy.Request{Stage: policy.StageConn, Name: n, Port: 443, Protocol: policy.TCP})
		a.matches, a.judge = aboutName(host, policy.StageConn), proxyStatus
		a.anyTarget = b.cfg.Policy.ResolvesOthers(n) // then any name may be resolved upstream, to judge its addresses
	})
	b.add(s, "explicit proxy", "absolute-form request for metadata", metadata.String(), func(a *attack) {
		a.send(connect(b.proxyOf(s), httpRequest("GET", "http://"+metadata.String()+"/", metadata.String(), a.task.Token)))
		b.expectDenial(a, policy.Request{Stage: policy.StageConn, Addr: metadata.Addr(), Port: metadata.Port(), Protocol: policy.TCP},
			name.ReasonHostPort)
		a.to, a.judge = metadata, proxyStatus
		a.matches = func(e audit.Event) bool { return e.Stage == policy.StageHTTP && atAddressOrName(metadata, "")(e) }
	})
}

func (b *builder) proxyOf(s *side) netip.AddrPort {
	return netip.AddrPortFrom(s.gateway, b.cfg.ExplicitPort)
}

// connectTo adds an attack that asks the explicit proxy for a tunnel to an address.
func (b *builder) connectTo(s *side, n string, to netip.AddrPort, more func(*attack)) {
	b.add(s, "explicit proxy", n, to.String(), func(a *attack) {
		a.send(connect(b.proxyOf(s), fmt.Appendf(nil, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)))
		b.expectDenial(a, policy.Request{Stage: policy.StageConn, Addr: to.Addr(), Port: to.Port(), Protocol: policy.TCP},
			name.ReasonHostPort, name.ReasonNoName)
		a.to, a.judge = to, proxyStatus
		a.matches = func(e audit.Event) bool { return e.Stage == policy.StageConn && atAddress(to)(e) }
		if more != nil {
			more(a)
		}
	})
}

// proxyStatus judges an answer of the explicit proxy: a refusal is a 4xx status.
func proxyStatus(r probe.Answer) (string, bool) {
	switch {
	case r.Outcome != probe.Answered:
		return "no answer", false
	case bytes.HasPrefix(r.Data, []byte("HTTP/1.1 4")):
		return "HTTP " + string(r.Data[9:12]), false
	default:
		line, _, _ := bytes.Cut(r.Data, []byte("\r\n"))
		return fmt.Sprintf("ANSWERED: %.40q", line), true
	}
}

// refusedAtOnce judges an attack that the kernel refuses, without a connection or an answer.
func refusedAtOnce(r probe.Answer) (string, bool) {
	switch r.Outcome {
	case probe.Refused:
		return "reset or prohibited", false
	case probe.Silent:
		return "no answer", false
	case probe.Closed, probe.Open:
		return "CONNECTED", true
	default:
		return fmt.Sprintf("ANSWERED with %d bytes", len(r.Data)), true
	}
}

// refusedByProxy judges an attack on the proxy, which accepts the connection to read the name and refuses within the
// protocol.
func (b *builder) refusedByProxy(r probe.Answer) (string, bool) {
	const alert, handshake = 21, 22 // record types (RFC 8446, 5.1)
	switch {
	case r.Outcome == probe.Closed:
		return "closed", false
	case r.Outcome == probe.Open: // the decision must still be logged, and no packet may have left
		return "no answer", false
	case r.Outcome != probe.Answered:
		return refusedAtOnce(r)
	case len(r.Data) > 0 && r.Data[0] == alert:
		return "TLS alert", false
	case len(r.Data) > 0 && r.Data[0] == handshake && b.cfg.DenyPage:
		return "TLS to the denial page", false
	case bytes.HasPrefix(r.Data, []byte("HTTP/1.1 4")):
		return "HTTP " + string(r.Data[9:12]), false
	default:
		return refusedAtOnce(r)
	}
}

// ignoreAnswer judges an attack whose answer proves nothing. Only the packets seen on the wire count.
func ignoreAnswer(r probe.Answer) (string, bool) {
	if r.Outcome == probe.Answered {
		return "an answer, from the name's owner", false
	}
	return "no answer", false
}

// httpRequest returns a request that contains the token.
func httpRequest(method, target, host string, token []byte) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: boxgate-selftest/%s\r\nConnection: close\r\n\r\n",
		method, target, host, token)
}

// clientHello returns the first message of a TLS client, with name as its server name unless it is "". The token is
// among the offered protocols, which are not encrypted.
func clientHello(name string, token []byte) []byte {
	var hello recording
	// The handshake fails after writing the first message, which is enough.
	_ = tls.Client(&hello, &tls.Config{
		ServerName: name, InsecureSkipVerify: true, NextProtos: []string{string(token), "http/1.1"},
		CurvePreferences: []tls.CurveID{tls.X25519}, // a post-quantum share would fill a second segment
	}).Handshake()
	return hello.Bytes()
}

// recording is a connection that keeps the written bytes and never answers.
type recording struct{ bytes.Buffer }

func (*recording) Read([]byte) (int, error)         { return 0, io.EOF }
func (*recording) Close() error                     { return nil }
func (*recording) LocalAddr() net.Addr              { return nil }
func (*recording) RemoteAddr() net.Addr             { return nil }
func (*recording) SetDeadline(time.Time) error      { return nil }
func (*recording) SetReadDeadline(time.Time) error  { return nil }
func (*recording) SetWriteDeadline(time.Time) error { return nil }

// slowly splits a message into single bytes.
func slowly(message []byte) [][]byte {
	var pieces [][]byte
	for i := range message {
		pieces = append(pieces, message[i:i+1])
	}
	return pieces
}
