package report

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/nft"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Messages and attributes of NFLOG (linux/netfilter/nfnetlink_log.h).
const (
	logConfig = 1 // NFULNL_MSG_CONFIG

	cfgCommand = 1 // NFULA_CFG_CMD
	cfgMode    = 2 // NFULA_CFG_MODE
	cfgQueue   = 5 // NFULA_CFG_QTHRESH

	cmdBind    = 1 // NFULNL_CFG_CMD_BIND
	copyPacket = 2 // NFULNL_COPY_PACKET

	attrInput   = 4  // NFULA_IFINDEX_INDEV
	attrPayload = 9  // NFULA_PAYLOAD
	attrPrefix  = 10 // NFULA_PREFIX
)

// bindTimeout is how long to wait for the group of a gateway that has ended: the kernel frees it with the last descriptor,
// and a child process between fork and exec may still have one.
const bindTimeout = 10 * time.Second

// awaitLogGroup is bindLogGroup with a wait for another gateway's socket to close.
func awaitLogGroup(c *netfilter.Conn, group uint16) error {
	for until := time.Now().Add(bindTimeout); ; time.Sleep(10 * time.Millisecond) {
		if err := bindLogGroup(c, group); !errors.Is(err, unix.EPERM) || time.Now().After(until) {
			return err
		}
	}
}

// bindLogGroup makes the socket the reader of the group. Each packet is delivered immediately, not batched.
func bindLogGroup(c *netfilter.Conn, group uint16) error {
	mode := append(binary.BigEndian.AppendUint32(nil, nft.SnapLength), copyPacket, 0)
	for _, attrs := range [][]netfilter.Attribute{
		{{Type: cfgCommand, Data: []byte{cmdBind}}},
		{{Type: cfgMode, Data: mode}, {Type: cfgQueue, Data: binary.BigEndian.AppendUint32(nil, 1)}},
	} {
		m, err := netfilter.MarshalNetlink(netfilter.Header{SubsystemID: netfilter.NFSubsysULOG, MessageType: logConfig,
			ResourceID: group, Flags: netlink.Request | netlink.Acknowledge}, attrs)
		if err != nil {
			return err
		}
		if _, err := c.Query(m); err != nil {
			return err
		}
	}
	return nil
}

// recordRefusal records the event of one refused packet.
func (r *Reports) recordRefusal(m netlink.Message) {
	_, attrs, err := netfilter.UnmarshalNetlink(m)
	if err != nil {
		return
	}
	var reason name.Reason
	var p packet
	index := 0
	for _, a := range attrs {
		switch {
		case a.Type == attrPrefix:
			reason = name.Reason(bytes.TrimRight(a.Data, "\x00"))
		case a.Type == attrInput && len(a.Data) == 4:
			index = int(binary.BigEndian.Uint32(a.Data))
		case a.Type == attrPayload:
			p = parsePacket(a.Data)
		}
	}
	if !slices.Contains(nft.Refusals, reason) {
		return
	}
	r.mu.Lock()
	t := r.byIndex[index]
	e := t.event()
	e.Protocol, e.Addr, e.Port = p.protocol, p.dest, p.port
	e.Verdict, e.Action, e.Reason = policy.Deny, audit.ActionRefuse, reason
	if t != nil {
		r.markDirty(countKey{t.Link, reason}, t).reported++
	}
	r.mu.Unlock()
	e = r.withName(r.withRule(e))
	if t != nil {
		r.setReportedReason(countKey{t.Link, reason}, e.Reason)
	}
	r.cfg.Audit.Record(e)
}

// withRule adds the policy's rule, if the policy also refuses the packet. The kernel may only know that the address is on
// no list; the policy may have a more specific reason.
func (r *Reports) withRule(e audit.Event) audit.Event {
	switch e.Reason {
	case name.ReasonSpoofed, name.ReasonProtocol, name.ReasonHostPort, name.ReasonLimit:
		return e
	}
	d, ok := r.explain(e)
	if !ok || d.Allowed() {
		return e
	}
	if e.Reason == name.ReasonNotAllowed && (d.Reason == name.ReasonDenyAll || d.Reason == name.ReasonDeniedDomain || d.Reason == name.ReasonProtocol) {
		e.Reason = d.Reason
	}
	if d.Reason == e.Reason {
		e.Rule, e.Version = d.Rule, d.Version
	}
	return e
}

// withName adds the name that DNS last resolved to the address for the box. The name played no part in the decision.
func (r *Reports) withName(e audit.Event) audit.Event {
	if r.cfg.Names == nil || e.Box == "" || !e.Addr.IsValid() {
		return e
	}
	if names := r.cfg.Names(e.Box, e.Addr); len(names) > 0 {
		e.Name = names[0].String()
	}
	return e
}

// packet is the part of a refused packet that an event contains.
type packet struct {
	protocol policy.Protocol // empty: a protocol that boxes may not use
	dest     netip.Addr
	port     uint16
}

// parsePacket parses as much as possible of a packet that begins with its IP header. It does not follow extension headers:
// a packet with any is refused for that reason alone.
func parsePacket(b []byte) packet {
	var p packet
	var rest []byte
	first := true // only the first fragment has ports
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		p.protocol = flow.ProtocolOf(b[9])
		p.dest = netip.AddrFrom4([4]byte(b[16:20]))
		first = binary.BigEndian.Uint16(b[6:8])&0x1fff == 0
		if n := int(b[0]&0x0f) * 4; n >= 20 && n <= len(b) {
			rest = b[n:]
		}
	case len(b) >= 40 && b[0]>>4 == 6:
		p.protocol = flow.ProtocolOf(b[6])
		p.dest = netip.AddrFrom16([16]byte(b[24:40]))
		rest = b[40:]
	}
	if first && len(rest) >= 4 && (p.protocol == policy.TCP || p.protocol == policy.UDP) {
		p.port = binary.BigEndian.Uint16(rest[2:4])
	}
	return p
}

// countKey identifies a counter of refused packets: the kernel has one per interface and reason.
type countKey struct {
	link   string
	reason name.Reason
}

// count compares reported packets with counted ones.
type count struct {
	reported   uint64 // packets covered by events
	seen       uint64 // packets that the kernel had counted at the last check
	dirty      bool   // packets arrived since the last check
	box        *tracked
	reportedAs name.Reason // the policy's reason for the last refusal
}

// markDirty records that packets have arrived for the counter. The caller holds mu.
func (r *Reports) markDirty(k countKey, t *tracked) *count {
	c := r.counts[k]
	if c == nil {
		c = &count{reportedAs: k.reason}
		r.counts[k] = c
	}
	c.dirty, c.box = true, t
	return c
}

// setReportedReason records the policy's reason for refusals of a counter.
func (r *Reports) setReportedReason(k countKey, as name.Reason) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.counts[k]; c != nil {
		c.reportedAs = as
	}
}

// countSuppressed records, for each box and reason, one event for the packets that the kernel refused without logging them
// one by one.
func (r *Reports) countSuppressed() {
	if r.refusalsMissed.Swap(false) {
		r.countEverything()
	}
	for _, reason := range r.dirtyReasons() {
		seen, err := r.cfg.Counters.Seen(reason)
		if err != nil {
			r.cfg.Log.Warn("firewall: counters of refused packets", zap.Error(err))
		} // without counters, suppressedEvents drops the reason
		for _, e := range r.suppressedEvents(reason, seen) {
			r.cfg.Audit.Record(e)
		}
	}
}

// countEverything marks every counter of every box to be read, because messages about changed ones were lost.
func (r *Reports) countEverything() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.byIndex {
		for _, reason := range nft.Refusals {
			r.markDirty(countKey{t.Link, reason}, t)
		}
	}
}

func (r *Reports) dirtyReasons() []name.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []name.Reason
	for k, c := range r.counts {
		if c.dirty && !slices.Contains(out, k.reason) {
			out = append(out, k.reason)
		}
	}
	return out
}

// suppressedEvents returns events for packets that were counted but not reported. Their destinations are unknown, so the events have
// none. It compares the count at the last check with the reports until now: reports of packets that were counted just now
// may still be on their way, and would be recorded twice.
func (r *Reports) suppressedEvents(reason name.Reason, seen map[string]uint64) []audit.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []audit.Event
	for k, c := range r.counts {
		total, counted := seen[k.link]
		switch {
		case k.reason != reason || !c.dirty:
		case c.seen > c.reported:
			e := c.box.event()
			e.Verdict, e.Action, e.Reason = policy.Deny, audit.ActionRefuse, c.reportedAs
			e.Count, e.Error = c.seen-c.reported, "packets that the kernel refused without logging them one by one"
			c.reported, c.seen = c.seen, max(c.seen, total)
			out = append(out, e)
		case !counted: // the table was replaced, or no packet arrived for an hour
			delete(r.counts, k)
		case total > c.reported: // recorded at the next check, unless their own reports arrive before
			c.seen = total
		default:
			c.dirty = false
		}
	}
	return out
}
