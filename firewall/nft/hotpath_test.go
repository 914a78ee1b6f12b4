package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// packet has the properties of a packet that rules can see.
type packet struct {
	family           network.Family
	src, dst         netip.Addr
	proto            byte
	port             uint16 // destination port
	from, to         string // interfaces
	state            uint32 // of its connection
	answer, accepted bool   // against the direction of the connection; to a socket of the gateway
	mark, ctMark     uint32
}

// load returns the value that an expression loads from the packet.
func (p *packet) load(e expr.Any) []byte {
	group := func(link string) uint32 {
		if strings.HasPrefix(link, network.LinkPrefix) {
			return network.LinkGroup
		}
		return 0
	}
	switch e := e.(type) {
	case *expr.Meta:
		return map[expr.MetaKey][]byte{
			expr.MetaKeyIIFNAME: ifname(p.from), expr.MetaKeyOIFNAME: ifname(p.to), expr.MetaKeyIIFGROUP: native32(group(p.from)),
			expr.MetaKeyOIFGROUP: native32(group(p.to)), expr.MetaKeyIIF: native32(2), expr.MetaKeyOIF: native32(2),
			expr.MetaKeyNFPROTO: {byte(p.family)}, expr.MetaKeyL4PROTO: {p.proto}, expr.MetaKeyMARK: native32(p.mark),
		}[e.Key]
	case *expr.Ct:
		direction := byte(0)
		if p.answer {
			direction = 1
		}
		return map[expr.CtKey][]byte{expr.CtKeySTATE: native32(p.state), expr.CtKeyDIRECTION: {direction},
			expr.CtKeyMARK: native32(p.ctMark), expr.CtKeySTATUS: native32(0)}[e.Key]
	case *expr.Payload:
		return p.header(e)[e.Offset : e.Offset+e.Len]
	default: // an IPv6 extension header; or the type of an address elsewhere
		return make([]byte, 4)
	}
}

func (p *packet) header(e *expr.Payload) []byte {
	h := make([]byte, 40)
	switch {
	case e.Base == expr.PayloadBaseTransportHeader:
		binary.BigEndian.PutUint16(h[2:], p.port)
		binary.BigEndian.PutUint16(h[checksum:], 1)
	case p.family == network.V4:
		h[0] = 0x45
		copy(h[12:], p.src.AsSlice())
		copy(h[16:], p.dst.AsSlice())
	default:
		h[0] = 0x60
		copy(h[8:], p.src.AsSlice())
		copy(h[24:], p.dst.AsSlice())
	}
	return h
}

// machine interprets the kernel's rules like the kernel, and counts expressions.
type machine struct {
	t       *testing.T
	rules   map[string][][]expr.Any
	sets    map[string]*nftables.Set
	members map[string][]nftables.SetElement
	count   int
	regs    [5 * 16]byte
}

// other is an expression that the library does not decode, or whose content does not matter here.
type other struct {
	expr.Any
	name  string
	limit bool // a connection limit: it matches above the limit
}

// read reads all rules from the kernel.
func (m *machine) read(tbl *Table) {
	m.t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(tbl.ns)})
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, a := range answers {
		chain, list := "", []expr.Any(nil)
		each(m.t, a.Data[4:], func(kind uint16, b []byte) {
			switch kind {
			case unix.NFTA_RULE_CHAIN:
				chain = string(bytes.TrimRight(b, "\x00"))
			case unix.NFTA_RULE_EXPRESSIONS:
				each(m.t, b, func(_ uint16, b []byte) { list = append(list, m.expression(b)) })
			}
		})
		m.rules[chain] = append(m.rules[chain], list)
	}
	m.readSets(tbl)
}

func (m *machine) readSets(tbl *Table) {
	m.t.Helper()
	c, err := tbl.dial()
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	sets, err := c.GetSets(table())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, s := range sets {
		m.sets[s.Name] = s
		if m.members[s.Name], err = c.GetSetElements(s); err != nil {
			m.t.Fatal(err)
		}
	}
}

func each(t *testing.T, b []byte, do func(kind uint16, b []byte)) {
	t.Helper()
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		t.Fatal(err)
	}
	for ad.Next() {
		do(ad.Type(), ad.Bytes())
	}
}

func (m *machine) expression(b []byte) (e expr.Any) {
	m.t.Helper()
	name := ""
	each(m.t, b, func(kind uint16, b []byte) {
		if kind == unix.NFTA_EXPR_NAME {
			name = string(bytes.TrimRight(b, "\x00"))
			return
		}
		known := map[string]expr.Any{"meta": &expr.Meta{}, "cmp": &expr.Cmp{}, "payload": &expr.Payload{}, "bitwise": &expr.Bitwise{},
			"lookup": &expr.Lookup{}, "immediate": &expr.Immediate{}, "ct": &expr.Ct{}, "fib": &expr.Fib{}, "exthdr": &expr.Exthdr{}}
		if e = known[name]; e == nil {
			e = &other{name: name, limit: bytes.Contains(b, []byte("connlimit"))}
			return
		}
		if err := expr.Unmarshal(byte(nftables.TableFamilyINet), b, e); err != nil {
			m.t.Fatal(err)
		}
		if i, ok := e.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
			v := &expr.Verdict{}
			if err := expr.Unmarshal(byte(nftables.TableFamilyINet), b, v); err != nil {
				m.t.Fatal(err)
			}
			e = v
		}
	})
	return e
}

// run sends a packet through a chain and returns the verdict: accept, drop, or continue at its end.
func (m *machine) run(chain string, p *packet) expr.VerdictKind {
	for _, rule := range m.rules[chain] {
		switch v := m.rule(rule, p); v.Kind {
		case expr.VerdictContinue:
		case expr.VerdictReturn:
			return expr.VerdictContinue
		case expr.VerdictJump:
			if got := m.run(v.Chain, p); got != expr.VerdictContinue {
				return got
			}
		case expr.VerdictGoto:
			return m.run(v.Chain, p)
		default:
			return v.Kind
		}
	}
	return expr.VerdictContinue
}

// rule counts the expressions up to the first that does not match.
func (m *machine) rule(rule []expr.Any, p *packet) expr.Verdict {
	for _, e := range rule {
		m.count++
		v, matches := m.step(e, p)
		if !matches {
			break
		}
		if v.Kind != expr.VerdictContinue {
			return v
		}
	}
	return expr.Verdict{Kind: expr.VerdictContinue}
}

func (m *machine) reg(n uint32) []byte { return m.regs[n*16:] }

func (m *machine) step(e expr.Any, p *packet) (v expr.Verdict, matches bool) {
	v.Kind = expr.VerdictContinue
	switch e := e.(type) {
	case *expr.Verdict:
		return *e, true
	case *expr.Immediate:
		copy(m.reg(e.Register), e.Data)
	case *expr.Meta:
		if e.SourceRegister && e.Key == expr.MetaKeyMARK {
			p.mark = readNative32(m.reg(e.Register))
		} else if !e.SourceRegister {
			copy(m.reg(e.Register), p.load(e))
		}
	case *expr.Ct:
		if !e.SourceRegister {
			copy(m.reg(e.Register), p.load(e))
		} else if e.Key == expr.CtKeyMARK {
			p.ctMark = readNative32(m.reg(e.Register))
		}
	case *expr.Payload:
		if e.OperationType == expr.PayloadLoad {
			copy(m.reg(e.DestRegister), p.load(e))
		} else if e.Offset == 2 {
			p.port = binary.BigEndian.Uint16(m.reg(e.SourceRegister))
		}
	case *expr.Fib:
		copy(m.reg(e.Register), p.load(e))
	case *expr.Exthdr:
		copy(m.reg(e.DestRegister), p.load(e))
	case *expr.Bitwise:
		for i := range e.Len {
			m.reg(e.DestRegister)[i] = m.reg(e.SourceRegister)[i]&e.Mask[i] ^ e.Xor[i]
		}
	case *expr.Cmp:
		return v, bytes.Equal(m.reg(e.Register)[:len(e.Data)], e.Data) == (e.Op == expr.CmpOpEq)
	case *expr.Lookup:
		return m.lookup(e)
	case *other:
		if e.name == "masq" || e.name == "nat" {
			v.Kind = expr.VerdictAccept
		}
		if e.name == "socket" && p.accepted {
			m.reg(r1)[0] = 1
		}
		return v, !e.limit && (e.name != "socket" || p.accepted)
	}
	return v, true
}

func (m *machine) lookup(e *expr.Lookup) (v expr.Verdict, matches bool) {
	v.Kind = expr.VerdictContinue
	key := m.reg(e.SourceRegister)
	found := strings.HasSuffix(strings.TrimRight(e.SetName, "46"), "_allow") &&
		(bytes.HasPrefix(key, allowed[network.V4].AsSlice()) || bytes.HasPrefix(key, allowed[network.V6].AsSlice()))
	for _, member := range m.members[e.SetName] {
		if m.sets[e.SetName].Interval || !bytes.HasPrefix(key, member.Key) {
			continue
		}
		found = true
		if e.IsDestRegSet && e.DestRegister == 0 {
			each(m.t, member.Val, func(kind uint16, b []byte) {
				if kind == unix.NFTA_VERDICT_CHAIN {
					v = expr.Verdict{Kind: expr.VerdictGoto, Chain: string(bytes.TrimRight(b, "\x00"))}
				}
			})
		}
	}
	return v, found != e.Invert
}

// way is the path of a packet.
type way struct {
	name   string
	packet func(network.Family) packet
	hooks  [5]string // chains, in order; empty: not passed
}

// Addresses allowed by the plan, other addresses, and addresses of packets outside.
var (
	allowed   = bothFamilies("198.51.100.7", "2001:db8:2::7")
	elsewhere = bothFamilies("203.0.113.7", "2001:db8:1::7")
	host      = bothFamilies("203.0.113.1", "2001:db8:1::1")
	gateway   = bothFamilies("10.77.0.1", "fd77::1")
)

func bothFamilies(v4, v6 string) map[network.Family]netip.Addr {
	return map[network.Family]netip.Addr{network.V4: netip.MustParseAddr(v4), network.V6: netip.MustParseAddr(v6)}
}

// ways returns the paths of most packets.
func ways(box *Entry) []way {
	own := bothFamilies(box.Sources[0].String(), box.Sources[1].String())
	const uplink = "up0"
	out := func(state uint32, mark uint32) func(network.Family) packet {
		return func(f network.Family) packet {
			return packet{family: f, src: own[f], dst: allowed[f], proto: unix.IPPROTO_TCP, port: 443, from: box.Link, to: uplink, state: state, ctMark: mark}
		}
	}
	in := func(f network.Family) packet {
		return packet{family: f, src: allowed[f], dst: own[f], proto: unix.IPPROTO_TCP, port: 40000, from: uplink, to: box.Link,
			state: stateEstablished, answer: true, ctMark: box.Mark | network.FlowForwarded}
	}
	steered := func(state uint32, accepted bool) func(network.Family) packet {
		return func(f network.Family) packet {
			return packet{family: f, src: own[f], dst: elsewhere[f], proto: unix.IPPROTO_TCP, port: 443, from: box.Link, state: state, ctMark: box.Mark, accepted: accepted}
		}
	}
	query := func(server map[network.Family]netip.Addr) func(network.Family) packet {
		return func(f network.Family) packet {
			return packet{family: f, src: own[f], dst: server[f], proto: unix.IPPROTO_UDP, port: 53, from: box.Link, state: stateUntracked, accepted: true}
		}
	}
	known := [5]string{chainGuard, chainJudge, chainForward, "", chainLeak}
	first := [5]string{chainGuard, chainJudge, chainForward, chainHide, chainLeak}
	return []way{
		{"forwarded, from the box", out(stateEstablished, box.Mark|network.FlowForwarded), known},
		{"forwarded, to the box", in, known},
		{"forwarded, the first of a connection", out(stateNew, 0), first},
		{"to the proxy", steered(stateEstablished, true), [5]string{chainGuard, chainJudge, chainInput}},
		{"to the proxy, the first of a connection", steered(stateNew, true), [5]string{chainGuard, chainJudge, chainInput}},
		{"a DNS query to the gateway", query(gateway), [5]string{chainGuard, chainJudge, chainInput}},
		{"a DNS query to another server", query(elsewhere), [5]string{chainGuard, chainJudge, chainInput}},
	}
}

// counts returns the number of expressions for an IPv4 packet per chain and in total, and for an IPv6 packet in total.
func (m *machine) counts(w way) (out []string) {
	m.t.Helper()
	for _, f := range network.Families {
		p, total := w.packet(f), 0
		inside := p.dst
		for _, chain := range w.hooks {
			m.count = 0
			switch p.dst = inside; {
			case chain == chainGuard && p.answer: // before its destination is translated
				p.dst = host[f]
			case chain == chainLeak && !p.answer: // after its source was translated
				p.src = host[f]
			}
			if chain != "" && m.run(chain, &p) == expr.VerdictDrop {
				m.t.Errorf("%s is dropped by %s", w.name, chain)
			}
			total += m.count
			switch {
			case f == network.V6:
			case chain == "":
				out = append(out, "–")
			default:
				out = append(out, fmt.Sprint(m.count))
			}
		}
		out = append(out, fmt.Sprint(total))
	}
	return out
}

// docs/architecture.md lists the number of expressions per packet: the rules in the kernel agree.
func TestExpressionsOfTheHotPaths(t *testing.T) {
	t.Parallel()
	tbl, box := newTable(t)
	plan := opening("198.51.100.0/24")
	plan.Allowed = append(plan.Allowed, parsed("2001:db8:2::/48")...)
	plan.SteerOther.Ports = []uint16{80, 443}
	if err := tbl.Replace(t.Context(), Change{box, plan}); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, rules: map[string][][]expr.Any{}, sets: map[string]*nftables.Set{}, members: map[string][]nftables.SetElement{}}
	m.read(tbl)
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range ways(box) {
		line := fmt.Sprintf("| %s | %s |", way.name, strings.Join(m.counts(way), " | "))
		if !bytes.Contains(text, []byte("\n"+line+"\n")) {
			t.Errorf("docs/architecture.md does not say:\n%s", line)
		}
	}
}
