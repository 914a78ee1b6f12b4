package dns

import (
	"encoding/binary"
	"errors"
	"net"
	"time"

	mdns "github.com/miekg/dns"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

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
