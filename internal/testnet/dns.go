package testnet

import (
	"crypto/tls"
	"net/netip"

	"github.com/miekg/dns"
)

// serveDNS answers on the addresses of the DNS server by UDP, TCP and TLS.
func (n *servers) serveDNS() error {
	tlsConfig := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return n.honest.leaf("dns.example.com", dnsV4, dnsV6)
	}}
	for _, a := range []netip.Addr{dnsV4, dnsV6} {
		pc, err := n.listenPacket(netip.AddrPortFrom(a, 53))
		if err != nil {
			return err
		}
		n.runDNS(&dns.Server{PacketConn: pc, Handler: n.dnsHandler(netip.AddrPortFrom(a, 53))})
		ln, err := n.listen(netip.AddrPortFrom(a, 53))
		if err != nil {
			return err
		}
		n.runDNS(&dns.Server{Listener: ln, Handler: n.dnsHandler(netip.AddrPortFrom(a, 53))})
		if ln, err = n.listen(netip.AddrPortFrom(a, 853)); err != nil {
			return err
		}
		n.runDNS(&dns.Server{Listener: tls.NewListener(ln, tlsConfig), Handler: n.dnsHandler(netip.AddrPortFrom(a, 853))})
	}
	return nil
}

// runDNS serves until Close. miekg/dns cannot be shut down before it has started, so runDNS waits for that first.
func (n *servers) runDNS(s *dns.Server) {
	begun := make(chan struct{})
	s.NotifyStartedFunc = func() { close(begun) }
	ended := make(chan struct{})
	n.running.Go(func() {
		defer close(ended)
		if err := s.ActivateAndServe(); err != nil {
			n.logf("test internet: DNS: %v", err)
		}
	})
	select {
	case <-begun:
	case <-ended:
	}
	n.closers = append(n.closers, closerFunc(s.Shutdown))
}

// dnsHandler answers from the zone and records the queries received at addr.
func (n *servers) dnsHandler(addr netip.AddrPort) dns.HandlerFunc {
	return func(w dns.ResponseWriter, query *dns.Msg) {
		if len(query.Question) != 1 {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(query, dns.RcodeFormatError))
			return
		}
		q := query.Question[0]
		n.records.add(Received{
			Kind: Query, Addr: addr, Remote: addrPort(w.RemoteAddr()), Name: canonical(q.Name), Type: dns.TypeToString[q.Qtype],
		})
		answer := n.zone.answer(q)
		if answer.Silent {
			return
		}
		m := new(dns.Msg).SetRcode(query, answer.Rcode)
		m.Authoritative, m.RecursionAvailable = true, true
		m.Answer = answer.Records
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{authorityOf(q.Name)}
		}
		size := dns.MaxMsgSize
		if w.LocalAddr().Network() == "udp" {
			size = dns.MinMsgSize
		}
		if opt := query.IsEdns0(); opt != nil {
			m.SetEdns0(1232, false)
			size = max(size, int(opt.UDPSize()))
		}
		m.Truncate(size)
		if err := w.WriteMsg(m); err != nil {
			n.logf("test internet: DNS answer: %v", err)
		}
	}
}

// authorityOf returns the SOA record for a negative answer (RFC 2308).
func authorityOf(name string) dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1},
		Ns:  "dns.example.com.", Mbox: "hostmaster.example.com.", Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 1,
	}
}

// closerFunc is a function as an [io.Closer].
type closerFunc func() error

func (f closerFunc) Close() error { return f() }
