package selftest

import (
	"net/netip"

	"boxgate/policy"
	"boxgate/policy/name"
)

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
