package selftest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/selftest/probe"
)

// queries adds attacks by DNS: queries to other servers, and names that carry data out.
func (b *builder) queries(s *side) {
	address := mdns.TypeA
	if s.box.Is6() {
		address = mdns.TypeAAAA
	}
	foreign := func() netip.AddrPort { return netip.AddrPortFrom(s.stranger(), 53) }
	own := netip.AddrPortFrom(s.gateway, 53)
	b.query(s, "a name not allowed", probe.UDP, own, "%s"+noSuchName, address)
	b.query(s, "another server, UDP", probe.UDP, foreign(), "%s"+noSuchName, address)
	b.query(s, "another server, TCP", probe.TCP, foreign(), "%s"+noSuchName, address)
	b.query(s, "tunnel in long labels", probe.UDP, foreign(), "%s"+strings.Repeat("x", 40)+"."+strings.Repeat("y", 63)+noSuchName, mdns.TypeTXT)
	b.query(s, "tunnel in NULL records", probe.UDP, own, "%s"+noSuchName, mdns.TypeNULL)
	b.query(s, "tunnel in ANY", probe.UDP, own, "%s"+noSuchName, mdns.TypeANY)
	if _, name, ok := b.firstListed(b.cfg.Policy.Spec().DeniedDomains); ok {
		b.query(s, "tunnel below a denied name", probe.UDP, own, "%s."+name.String(), mdns.TypeTXT)
	}
}

// query sends a query for a name that contains the token.
func (b *builder) query(s *side, key string, k probe.Kind, server netip.AddrPort, format string, qtype uint16) {
	b.add(s, "DNS", key, server.String(), func(a *attack) {
		asked := fmt.Sprintf(format, a.task.Token)
		m := new(mdns.Msg).SetQuestion(mdns.Fqdn(asked), qtype)
		m.SetEdns0(1232, false)
		wire, err := m.Pack()
		n, nameErr := name.Parse(asked)
		if err != nil || nameErr != nil {
			a.skip("%s is no name that could be asked for", asked)
			return
		}
		if k == probe.TCP {
			wire = append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))), wire...)
		}
		a.send(probe.Task{Kind: k, To: server, Data: [][]byte{wire}})
		a.to, a.exclusive = server, server.Addr() != s.gateway
		d := b.cfg.Policy.Decide(policy.Request{Stage: policy.StageDNS, Box: b.cfg.Box, Name: n})
		address := qtype == mdns.TypeA || qtype == mdns.TypeAAAA
		switch {
		case qtype == mdns.TypeANY:
			a.refused(name.ReasonProtocol)
		case d.Allowed(), address && d.Reason == name.ReasonNotAllowed && b.cfg.Policy.ResolvesOthers(n):
			if !a.exclusive {
				a.Expected = "allowed"
				a.skip("allowed by policy: names are resolved")
				return
			}
			a.Expected, a.anyTarget = "answered by the gateway alone", true
			a.matches = aboutName(n.String(), policy.StageDNS)
			a.judge = ignoreAnswer
			return
		default:
			a.refused(d.Reason)
		}
		a.matches = aboutName(n.String(), policy.StageDNS)
		a.judge = func(r probe.Answer) (string, bool) { return b.readDNS(k, r) }
	})
}

// readDNS judges a DNS answer: a name that is not allowed must resolve to the sink only and have no other records.
func (b *builder) readDNS(k probe.Kind, r probe.Answer) (string, bool) {
	if r.Outcome != probe.Answered {
		return "no answer", false
	}
	wire := r.Data
	if k == probe.TCP && len(wire) > 2 {
		wire = wire[2:]
	}
	var m mdns.Msg
	if err := m.Unpack(wire); err != nil {
		return "an answer that is not DNS", true
	}
	for _, rr := range m.Answer {
		var a netip.Addr
		switch rr := rr.(type) {
		case *mdns.A:
			a, _ = netip.AddrFromSlice(rr.A.To4())
		case *mdns.AAAA:
			a, _ = netip.AddrFromSlice(rr.AAAA)
		}
		if a != b.cfg.SinkV4 && a != b.cfg.SinkV6 {
			return "ANSWERED: " + rr.String(), true
		}
	}
	if len(m.Answer) > 0 {
		return "the sink", false
	}
	return "an empty answer, " + mdns.RcodeToString[m.Rcode], false
}

// names adds attacks on decisions by name: denied names, and allowed names with another host's address.
func (b *builder) names(s *side) {
	b.deniedName(s, "TLS, a name not allowed", "", 443, false)
	b.deniedName(s, "TLS in one-byte segments", "", 443, true)
	b.deniedName(s, "HTTP, a name not allowed", "", 80, false)
	if pattern, name, ok := b.firstListed(b.cfg.Policy.Spec().DeniedDomains); ok {
		b.deniedName(s, "TLS, a name on the denied list", name.String(), portOf(pattern, 443), false)
	}
	b.noName(s)
	pattern, name, ok := b.firstListed(b.cfg.Policy.Spec().AllowedDomains)
	if !ok {
		return
	}
	b.deniedName(s, "TLS, an allowed name as a prefix", name.String()+noSuchName, portOf(pattern, 443), false)
	b.deniedName(s, "TLS, an allowed name as a part", "evil-"+name.String(), portOf(pattern, 443), false)
	b.ownerOnly(s, "TLS, an allowed name with another's address", name, portOf(pattern, 443))
	b.ownerOnly(s, "HTTP, an allowed name with another's address", name, portOf(pattern, 80))
}

func portOf(p name.Pattern, usual uint16) uint16 {
	if p.Port() != 0 {
		return p.Port()
	}
	return usual
}

// deniedName connects to a stranger under a name that the policy denies; "" makes one up.
func (b *builder) deniedName(s *side, attackName, host string, port uint16, byByte bool) {
	to := netip.AddrPortFrom(s.stranger(), port)
	b.add(s, "names", attackName, to.String(), func(a *attack) {
		if host == "" {
			host = string(a.task.Token) + noSuchName
		}
		n, err := name.Parse(host)
		if err != nil {
			a.skip("%s is too long to be a name", host)
			return
		}
		stage, message := policy.StageConn, clientHello(host, a.task.Token)
		if port == 80 {
			stage, message = policy.StageHTTP, httpRequest("GET", "/", host, a.task.Token)
		}
		a.send(connect(to, message))
		if byByte {
			a.task.Data = slowly(message)
		}
		b.expectDenial(a, policy.Request{Stage: stage, Name: n, Addr: to.Addr(), Port: port, Protocol: policy.TCP, Method: "GET", Path: "/"})
		a.to, a.exclusive, a.judge, a.matches = to, true, b.refusedByProxy, atAddressOrName(to, host)
	})
}

// noName connects to a stranger with TLS without a server name.
func (b *builder) noName(s *side) {
	to := netip.AddrPortFrom(s.stranger(), 443)
	b.add(s, "names", "TLS without a name", to.String(), func(a *attack) {
		a.send(connect(to, clientHello("", a.task.Token)))
		b.expectDenialAt(a, policy.TCP, to, unnamed...)
		a.exclusive, a.judge = true, b.refusedByProxy
	})
}

// ownerOnly connects to a stranger under an allowed name. The stranger must not receive the connection.
func (b *builder) ownerOnly(s *side, attackName string, name name.Name, port uint16) {
	to := netip.AddrPortFrom(s.stranger(), port)
	b.add(s, "names", attackName, to.String(), func(a *attack) {
		message := clientHello(name.String(), a.task.Token)
		if port == 80 {
			message = httpRequest("HEAD", "/", name.String(), a.task.Token)
		}
		a.send(connect(to, message))
		d := b.cfg.Policy.Decide(policy.Request{
			Stage: policy.StageConn, Box: b.cfg.Box, Name: name, Addr: to.Addr(), Port: port, Protocol: policy.TCP,
		})
		a.to, a.exclusive, a.matches, a.judge = to, true, atAddressOrName(to, name.String()), ignoreAnswer
		switch {
		case !d.Allowed():
			a.refused(d.Reason)
			a.judge = b.refusedByProxy
		case !d.DialName && !b.cfg.Policy.Intercepts(name, port):
			a.Expected = "allowed"
			a.skip("the address is allowed by policy: %s", ruleOf(d))
		default:
			a.anyTarget = true
			a.Expected = "reaches " + name.String() + " or nobody"
		}
	})
}
