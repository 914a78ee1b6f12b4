package selftest

import (
	"bytes"
	"fmt"
	"net/netip"

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
