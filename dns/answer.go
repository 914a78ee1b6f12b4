package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

const (
	minTTL = time.Second
	maxTTL = 24 * time.Hour
	// maxNegativeTTL bounds how long a negative answer is cached (RFC 2308, section 5).
	maxNegativeTTL = 15 * time.Minute
	// maxChain bounds the CNAME records followed for one query, over all upstream answers.
	maxChain = 16
)

// errChain is returned for a CNAME chain that loops, is too long, or leads to something other than a host name.
var errChain = errors.New("the CNAME chain loops, is too long, or does not lead to a host name")

// answer is the content of one upstream answer about one name and type. All boxes share it, so it is immutable except
// for packed.
type answer struct {
	rcode      int           // NOERROR or NXDOMAIN
	chain      []*mdns.CNAME // from the name asked on, in order
	targets    []name.Name   // the target of each record in chain
	records    []mdns.RR     // of the requested type, owned by the end of the chain
	soa        *mdns.SOA     // of a negative answer; may be nil
	incomplete bool          // the answer lacks the end of the chain, which needs another question
	stored     time.Time
	life       time.Duration // how long after stored it may be used; 0: not cached
	err        error         // the lookup failed; only stored and life are set in addition
	overLimit  *usage        // not looked up, because this box has too many lookups in flight

	packed atomic.Pointer[packed] // set on first use
}

// digest takes from an upstream message only the records that answer name and qtype: other owners, other types and the
// additional section are ignored.
func digest(m *mdns.Msg, name name.Name, qtype uint16, now time.Time) (*answer, error) {
	a := &answer{rcode: m.Rcode, stored: now}
	end := name
	for {
		owner := end.String() + "."
		a.records = recordsOf(m.Answer, owner, qtype)
		if len(a.records) > 0 {
			break
		}
		alias := cnameOf(m.Answer, owner)
		if alias == nil {
			break
		}
		target, err := parseName(alias.Target)
		if err != nil || len(a.chain) == maxChain {
			return nil, fmt.Errorf("%w: %s", errChain, name)
		}
		a.chain, a.targets = append(a.chain, alias), append(a.targets, target)
		end = target
	}
	if len(a.records) == 0 {
		a.soa = soaOf(m.Ns, end.String()+".")
		a.incomplete = len(a.chain) > 0 && a.rcode == mdns.RcodeSuccess && a.soa == nil
	} else {
		a.rcode = mdns.RcodeSuccess
	}
	a.life = a.lifetime()
	return a, nil
}

func recordsOf(rrs []mdns.RR, owner string, qtype uint16) []mdns.RR {
	var out []mdns.RR
	for _, rr := range rrs {
		h := rr.Header()
		if h.Rrtype != qtype || h.Class != mdns.ClassINET || mdns.CanonicalName(h.Name) != owner {
			continue
		}
		if isAddress(qtype) && !addrOf(rr).IsValid() {
			continue
		}
		if rr = withoutDetours(rr); rr != nil {
			out = append(out, rr)
		}
	}
	return out
}

func cnameOf(rrs []mdns.RR, owner string) *mdns.CNAME {
	for _, rr := range rrs {
		if c, ok := rr.(*mdns.CNAME); ok && c.Hdr.Class == mdns.ClassINET && mdns.CanonicalName(c.Hdr.Name) == owner {
			return c
		}
	}
	return nil
}

// soaOf returns the SOA record that makes an answer about owner negative. Its zone must contain owner.
func soaOf(rrs []mdns.RR, owner string) *mdns.SOA {
	for _, rr := range rrs {
		if soa, ok := rr.(*mdns.SOA); ok && soa.Hdr.Class == mdns.ClassINET && mdns.IsSubDomain(soa.Hdr.Name, owner) {
			return soa
		}
	}
	return nil
}

// lifetime returns the smallest TTL of the answer. A negative answer without an SOA record is not cached (RFC 2308,
// section 5).
func (a *answer) lifetime() time.Duration {
	life := maxTTL
	for _, c := range a.chain {
		life = min(life, ttlOf(c.Hdr.Ttl))
	}
	for _, rr := range a.records {
		life = min(life, ttlOf(rr.Header().Ttl))
	}
	if len(a.records) > 0 || a.incomplete {
		return life
	}
	if a.soa == nil {
		return 0
	}
	return min(life, maxNegativeTTL, ttlOf(min(a.soa.Hdr.Ttl, a.soa.Minttl)))
}

// ttlOf reads a TTL field; the top bit set means 0 (RFC 2181, section 8).
func ttlOf(field uint32) time.Duration {
	if field > 1<<31-1 {
		field = 0
	}
	return min(max(time.Duration(field)*time.Second, minTTL), maxTTL)
}

// aged returns a copy of rr with its remaining TTL.
func aged(rr mdns.RR, age time.Duration) mdns.RR {
	out := mdns.Copy(rr)
	out.Header().Ttl = uint32(remainingTTL(ttlOf(rr.Header().Ttl), age) / time.Second)
	return out
}

// remainingTTL returns the rest of a TTL after age, at least minTTL.
func remainingTTL(ttl, age time.Duration) time.Duration {
	return max(ttl-age.Truncate(time.Second), minTTL)
}

// Extended DNS errors (RFC 8914) that this server sends.
const (
	edeNone         = ^uint16(0)
	edeOther        = mdns.ExtendedErrorCodeOther
	edeBlocked      = mdns.ExtendedErrorCodeBlocked
	edeProhibited   = mdns.ExtendedErrorCodeProhibited
	edeNotSupported = mdns.ExtendedErrorCodeNotSupported
	edeNoAuthority  = mdns.ExtendedErrorCodeNoReachableAuthority
	edeNetwork      = mdns.ExtendedErrorCodeNetworkError
)

// sinkTTL is short, so that a policy change that allows a name takes effect immediately.
const sinkTTL = 1

// reply is an answer before it is packed.
type reply struct {
	rcode  int
	answer []mdns.RR
	soa    mdns.RR         // in the authority section, for negative answers; may be nil
	ede    *mdns.EDNS0_EDE // sent if the client speaks EDNS; may be nil
}

// refuse makes the reply to a refused query, and fills in the event.
func refuse(ev *audit.Event, rcode int, reason name.Reason, ede uint16) reply {
	ev.Verdict, ev.Action, ev.Reason = policy.Deny, audit.ActionRefuse, reason
	r := reply{rcode: rcode}
	if ede != edeNone {
		r.ede = &mdns.EDNS0_EDE{InfoCode: ede, ExtraText: string(reason)}
	}
	return r
}

// deny answers a query for a denied name in the way the policy chooses. The event holds the decision.
func (s *Server) deny(pol *policy.Compiled, box *policy.Box, name name.Name, q query, ev *audit.Event) reply {
	if rcode := deniedRcode(pol.AnswerDenied(name, box.Search)); rcode != mdns.RcodeSuccess {
		r := blocked(ev)
		r.rcode = rcode
		return r
	}
	if isAddress(q.qtype) {
		s.usages.usageOf(box).sinkTracker.recordName(name, time.Now())
	}
	return s.sink(q, ev)
}

// deniedRcode returns success if the answer is the sink.
func deniedRcode(as policy.DeniedNames) int {
	switch as {
	case policy.DeniedNXDOMAIN:
		return mdns.RcodeNameError
	case policy.DeniedRefused:
		return mdns.RcodeRefused
	}
	return mdns.RcodeSuccess
}

// sink answers a query for a denied name with the sink. The event holds the decision.
func (s *Server) sink(q query, ev *audit.Event) reply {
	r := blocked(ev)
	r.answer = s.sinkAnswer(q)
	if r.answer != nil {
		ev.Action = audit.ActionSink
	}
	return r
}

// url answers a query for a public URL of this gateway that the policy allows. The name has no records but the sink's
// addresses.
func (s *Server) url(q query, ev *audit.Event) reply {
	ev.Action = audit.ActionSink
	return reply{answer: s.sinkAnswer(q)}
}

// inside answers a query for the gateway's endpoint for boxes, which is allowed by every policy, with the sink.
func (s *Server) inside(pol *policy.Compiled, q query, ev *audit.Event) reply {
	setDecision(ev, policy.Decision{Verdict: policy.Allow, Reason: name.ReasonGateway, Version: pol.Version()})
	return s.url(q, ev)
}

// sinkAnswer returns the sink's address of the requested type, or nil for types other than A and AAAA.
func (s *Server) sinkAnswer(q query) []mdns.RR {
	hdr := mdns.RR_Header{Name: q.name, Rrtype: q.qtype, Class: mdns.ClassINET, Ttl: sinkTTL}
	switch q.qtype {
	case mdns.TypeA:
		return []mdns.RR{&mdns.A{Hdr: hdr, A: net.IP(s.sinkV4.AsSlice())}}
	case mdns.TypeAAAA:
		return []mdns.RR{&mdns.AAAA{Hdr: hdr, AAAA: net.IP(s.sinkV6.AsSlice())}}
	}
	return nil
}

// blocked is the empty answer that gives the policy as the reason.
func blocked(ev *audit.Event) reply {
	ev.Action = audit.ActionRefuse
	text := appendBlocked(nil, policy.Decision{Reason: ev.Reason, Rule: ev.Rule})
	return reply{ede: &mdns.EDNS0_EDE{InfoCode: edeBlocked, ExtraText: string(text)}}
}

// appendBlocked appends the part of a denial that the box may see: the reason and the rule.
func appendBlocked(text []byte, d policy.Decision) []byte {
	text = append(text, d.Reason...)
	if rule := d.ShownRule(); rule != "" {
		text = append(append(text, ' '), rule...)
	}
	return text
}

// unresolved makes the reply for an allowed name without an answer: its chain has a denied name, or upstream failed.
func unresolved(ev *audit.Event, err error) reply {
	ev.Error = err.Error()
	if denied, ok := errors.AsType[*policy.DeniedError](err); ok {
		setDecision(ev, denied.Decision)
		ev.Verdict = policy.Deny
		return blocked(ev)
	}
	ede := edeNetwork
	if _, ok := errors.AsType[rcodeError](err); ok {
		ede = edeNoAuthority
	} else if errors.Is(err, errChain) {
		ede = edeOther
	}
	return refuse(ev, mdns.RcodeServerFailure, name.ReasonUnresolved, ede)
}

// pack encodes a reply for the given transport. A reply that cannot be packed becomes a bare SERVFAIL.
func (q query) pack(wire []byte, r reply, transport policy.Protocol) []byte {
	if q.mute {
		return nil
	}
	if len(q.msg.Question) == 0 {
		return bareReply(wire, r.rcode)
	}
	m := q.message(r)
	m.Truncate(q.maxSize(transport))
	m.Compress = true
	out, err := m.Pack()
	if err != nil {
		return bareReply(wire, mdns.RcodeServerFailure)
	}
	return out
}

// message returns the reply, not yet truncated.
func (q query) message(r reply) *mdns.Msg {
	m := new(mdns.Msg).SetReply(&q.msg)
	m.RecursionAvailable = true
	m.Rcode = r.rcode
	m.Answer = r.answer
	if r.soa != nil {
		m.Ns = []mdns.RR{r.soa}
	}
	if q.opt != nil {
		m.Extra = []mdns.RR{q.replyOPT(r)}
	}
	return m
}

// replyOPT answers the client's OPT with ours. The DO bit is copied (RFC 3225, section 3); no other option is echoed.
func (q query) replyOPT(r reply) *mdns.OPT {
	opt := &mdns.OPT{Hdr: mdns.RR_Header{Name: ".", Rrtype: mdns.TypeOPT}}
	opt.SetUDPSize(udpSize)
	if q.opt.Do() {
		opt.SetDo()
	}
	if r.ede != nil {
		opt.Option = []mdns.EDNS0{r.ede}
	}
	return opt
}

// maxSize is the maximum size of the reply: no more than the client accepts, and no more than fits without
// fragmentation.
func (q query) maxSize(transport policy.Protocol) int {
	switch {
	case transport == policy.TCP:
		return mdns.MaxMsgSize
	case q.opt == nil:
		return mdns.MinMsgSize
	}
	return min(max(int(q.opt.UDPSize()), mdns.MinMsgSize), udpSize)
}

// bareReply is only a header, for queries whose question could not be parsed. It returns nil if wire has no complete
// header or is a response.
func bareReply(wire []byte, rcode int) []byte {
	if len(wire) < headerSize || wire[2]&0x80 != 0 {
		return nil
	}
	out := make([]byte, headerSize)
	copy(out, wire[:2])
	out[2] = 0x80 | wire[2]&0x79 // QR, and the client's opcode and RD
	binary.BigEndian.PutUint16(out[2:], binary.BigEndian.Uint16(out[2:])|0x80|uint16(rcode&0xf))
	return out
}

// detours are the parameters of HTTPS and SVCB records (RFC 9460) that would let a client bypass the gateway: ECH keys
// hide the name that the policy needs, and address hints bypass the A and AAAA queries, whose answers the policy checks.
var detours = []mdns.SVCBKey{mdns.SVCB_ECHCONFIG, mdns.SVCB_IPV4HINT, mdns.SVCB_IPV6HINT}

// withoutDetours returns rr without the detours and without HTTP/3, whose QUIC packets show no name that the proxy
// could read. It returns nil if no other protocol is left in rr. Other types are returned unchanged.
func withoutDetours(rr mdns.RR) mdns.RR {
	switch rr := rr.(type) {
	case *mdns.HTTPS:
		out := mdns.Copy(rr).(*mdns.HTTPS)
		if params, ok := stripDetours(out.Value); ok {
			out.Value = params
			return out
		}
		return nil
	case *mdns.SVCB:
		out := mdns.Copy(rr).(*mdns.SVCB)
		if params, ok := stripDetours(out.Value); ok {
			out.Value = params
			return out
		}
		return nil
	}
	return rr
}

// stripDetours removes the detours from a record's parameters, and reports whether any protocol is left.
func stripDetours(params []mdns.SVCBKeyValue) (left []mdns.SVCBKeyValue, ok bool) {
	var mandatory *mdns.SVCBMandatory
	noDefault, protocols, gone := false, true, slices.Clone(detours)
	for _, p := range params {
		switch v := p.(type) {
		case *mdns.SVCBMandatory:
			mandatory = v
		case *mdns.SVCBNoDefaultAlpn:
			noDefault = true
		case *mdns.SVCBAlpn:
			v.Alpn = slices.DeleteFunc(v.Alpn, isHTTP3)
			protocols = len(v.Alpn) > 0
		}
	}
	if !protocols {
		gone = append(gone, mdns.SVCB_ALPN)
	}
	removed := func(k mdns.SVCBKey) bool { return slices.Contains(gone, k) }
	if mandatory != nil {
		// A client must ignore a record with a mandatory key that is missing (RFC 9460, section 8).
		mandatory.Code = slices.DeleteFunc(mandatory.Code, removed)
		if len(mandatory.Code) == 0 {
			gone = append(gone, mdns.SVCB_MANDATORY)
		}
	}
	left = slices.DeleteFunc(params, func(p mdns.SVCBKeyValue) bool { return removed(p.Key()) })
	return left, protocols || !noDefault
}

func isHTTP3(alpn string) bool { return alpn == "h3" || strings.HasPrefix(alpn, "h3-") }
