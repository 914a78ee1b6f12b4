package testnet

import (
	"crypto/tls"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

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

// defaultTTL is the time to live of addresses, in seconds.
const defaultTTL = 60

// Answer is a response to one query.
type Answer struct {
	Records []dns.RR
	Rcode   int
	Silent  bool // send no response
}

// Answerer returns the response to the count-th query (from 1) for a name. It may block.
type Answerer func(q dns.Question, count int) Answer

// zone holds the records of the DNS server, for any name below the root. Safe for concurrent use.
type zone struct {
	mu         sync.Mutex
	records    map[string][]dns.RR   // canonical owner name → records
	firstNames map[netip.Addr]string // every address that a name of the zone ever had → the first name with it
	history    map[string]map[netip.Addr]bool
	answerers  map[string]Answerer
	counts     map[string]int
	edited     map[string]bool // names changed since the predefined hosts
	predefined *zoneContent    // nil until all predefined hosts exist
}

// zoneContent is the part of a zone that [zone.restore] restores.
type zoneContent struct {
	records    map[string][]dns.RR
	firstNames map[netip.Addr]string
	history    map[string]map[netip.Addr]bool
}

// contentLocked returns a copy of the zone's content.
func (z *zone) contentLocked() *zoneContent {
	c := &zoneContent{records: map[string][]dns.RR{}, firstNames: maps.Clone(z.firstNames), history: map[string]map[netip.Addr]bool{}}
	for name, rrs := range z.records {
		c.records[name] = slices.Clone(rrs)
	}
	for name, addrs := range z.history {
		c.history[name] = maps.Clone(addrs)
	}
	return c
}

// noteLocked records that a name changes.
func (z *zone) noteLocked(name string) {
	if z.edited == nil {
		z.edited = map[string]bool{}
	}
	z.edited[canonical(name)] = true
}

// keepPredefined makes the present names the predefined ones.
func (z *zone) keepPredefined() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.predefined, z.edited = z.contentLocked(), nil
}

// edits returns the names that were changed since the predefined hosts, and whether each is a predefined one.
func (z *zone) edits() map[string]bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	out := map[string]bool{}
	for name := range z.edited {
		_, out[name] = z.predefined.records[name]
	}
	return out
}

// restore removes every name but the predefined ones, which get their records back.
func (z *zone) restore() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records, z.firstNames, z.history = z.predefined.records, z.predefined.firstNames, z.predefined.history
	z.predefined, z.edited = z.contentLocked(), nil
	z.answerers, z.counts = map[string]Answerer{}, map[string]int{}
}

func newZone() *zone {
	return &zone{
		records: map[string][]dns.RR{}, firstNames: map[netip.Addr]string{}, history: map[string]map[netip.Addr]bool{},
		answerers: map[string]Answerer{}, counts: map[string]int{},
	}
}

// canonical returns the form of a name in the zone: lower case without the final dot.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// setTTL changes the time to live of a name's records, in seconds.
func (z *zone) setTTL(name string, ttl uint32) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.noteLocked(name)
	rrs := z.records[canonical(name)]
	for i, rr := range rrs {
		rr = dns.Copy(rr) // an answer in progress may still use the old one
		rr.Header().Ttl = ttl
		rrs[i] = rr
	}
}

// setAnswerer makes f answer the queries for a name. nil removes it.
func (z *zone) setAnswerer(name string, f Answerer) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.noteLocked(name)
	delete(z.counts, canonical(name))
	if f == nil {
		delete(z.answerers, canonical(name))
		return
	}
	z.answerers[canonical(name)] = f
}

func (z *zone) set(name string, rrs []dns.RR) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.noteLocked(name)
	if len(rrs) == 0 {
		delete(z.records, canonical(name))
		return
	}
	z.records[canonical(name)] = rrs
}

// setAddrs sets the addresses of a name and remembers them in firstNames and history.
func (z *zone) setAddrs(name string, addrs []netip.Addr) {
	name = canonical(name)
	var rrs []dns.RR
	for _, a := range addrs {
		rrs = append(rrs, addrRecord(name, a))
	}
	z.set(name, rrs)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.history[name] == nil {
		z.history[name] = map[netip.Addr]bool{}
	}
	for _, a := range addrs {
		z.history[name][a] = true
		if _, ok := z.firstNames[a]; !ok {
			z.firstNames[a] = name
		}
	}
}

// addrRecord returns the A or AAAA record of an address.
func addrRecord(name string, a netip.Addr) dns.RR {
	h := dns.RR_Header{Name: dns.Fqdn(name), Class: dns.ClassINET, Ttl: defaultTTL, Rrtype: dns.TypeA}
	if a.Is4() {
		return &dns.A{Hdr: h, A: a.AsSlice()}
	}
	h.Rrtype = dns.TypeAAAA
	return &dns.AAAA{Hdr: h, AAAA: a.AsSlice()}
}

// everOf returns all addresses that a host, given as name or address, has or had.
func (z *zone) everOf(host string) map[netip.Addr]bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return map[netip.Addr]bool{a: true}
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	return maps.Clone(z.history[canonical(host)])
}

// owns reports whether a name has or had an address, so that the host there may present a certificate for it.
func (z *zone) owns(name string, a netip.Addr) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.history[canonical(name)][a]
}

// nameOf returns the first name that an address had, or "".
func (z *zone) nameOf(a netip.Addr) string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.firstNames[a]
}

func (z *zone) addrsOf(name string) []netip.Addr {
	z.mu.Lock()
	defer z.mu.Unlock()
	var out []netip.Addr
	for _, rr := range z.records[canonical(name)] {
		switch rr := rr.(type) {
		case *dns.A:
			out = append(out, netip.AddrFrom4([4]byte(rr.A.To4())))
		case *dns.AAAA:
			out = append(out, netip.AddrFrom16([16]byte(rr.AAAA.To16())))
		}
	}
	return out
}

// answer returns the zone's response to a question. It follows CNAMEs within the zone.
func (z *zone) answer(q dns.Question) Answer {
	name := canonical(q.Name)
	z.mu.Lock()
	z.counts[name]++
	special, count := z.answerers[name], z.counts[name]
	z.mu.Unlock()
	if special != nil {
		return special(q, count)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	var out []dns.RR
	for range 9 {
		rrs, exists := z.findLocked(name)
		if !exists {
			return Answer{Records: out, Rcode: dns.RcodeNameError}
		}
		target := ""
		for _, rr := range rrs {
			if t := rr.Header().Rrtype; t == q.Qtype || t == dns.TypeCNAME || q.Qtype == dns.TypeANY {
				out = append(out, ownedBy(rr, name))
			}
			if c, ok := rr.(*dns.CNAME); ok && q.Qtype != dns.TypeCNAME && q.Qtype != dns.TypeANY {
				target = canonical(c.Target)
			}
		}
		if target == "" {
			return Answer{Records: out}
		}
		name = target
	}
	return Answer{Records: out, Rcode: dns.RcodeServerFailure}
}

// findLocked returns the records of a name, or of the wildcard above it, and whether the name exists.
func (z *zone) findLocked(name string) ([]dns.RR, bool) {
	if rrs, ok := z.records[name]; ok {
		return slices.Clone(rrs), true
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, false
		}
		if rrs, ok := z.records["*."+parent]; ok {
			return slices.Clone(rrs), true
		}
		rest = parent
	}
}

// ownedBy returns rr with the queried name, which differs from the owner name of a wildcard record.
func ownedBy(rr dns.RR, name string) dns.RR {
	rr = dns.Copy(rr)
	rr.Header().Name = dns.Fqdn(name)
	return rr
}
