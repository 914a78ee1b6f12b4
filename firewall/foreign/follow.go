package foreign

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
)

// This file follows rules for an imagined packet of a box. Values that depend on more than its kind, such as addresses and
// ports, are unknown, and so is every condition on them.

// kind is the way of a packet.
type kind int

const (
	toGateway kind = iota // DNS and connections that the proxy takes
	forwarded             // by the kernel, from a box
	replies               // to connections that the kernel forwards
)

// packet is the first packet of a box in a hook, or a reply to one.
type packet struct {
	kind  kind
	six   bool
	in    string // interface; empty: unknown
	out   string
	state uint32 // of the connection, as a bit of nftables' ct state
	mark  uint32
}

const (
	stateEstablished = 2
	stateNew         = 8
	// anyBox is the name of an interface that no rule names in full.
	anyBox = network.LinkPrefix + "000000000000"
)

// packetsOf returns the packets of boxes in a hook, for each address family of a table.
func packetsOf(hook nftables.ChainHook, family nftables.TableFamily) []packet {
	var all []packet
	switch hook {
	case *nftables.ChainHookInput:
		all = []packet{{kind: toGateway, in: anyBox, state: stateNew, mark: network.MarkProxy}}
	case *nftables.ChainHookForward:
		all = []packet{
			{kind: forwarded, in: anyBox, state: stateNew, mark: network.MarkForward},
			{kind: replies, out: anyBox, state: stateEstablished},
		}
	}
	var found []packet
	for _, p := range all {
		if family != nftables.TableFamilyIPv6 {
			found = append(found, p)
		}
		if family != nftables.TableFamilyIPv4 {
			p.six = true
			found = append(found, p)
		}
	}
	return found
}

// outcome is the result of a rule or chain.
type outcome int

const (
	goesOn outcome = iota // no verdict
	accepts
	drops
)

// ruleset contains the rules of a table by the name of the chain.
type ruleset struct {
	conn   *nftables.Conn
	table  *nftables.Table
	chains map[string][]*nftables.Rule
	sets   map[string][]nftables.SetElement // those read so far
}

// maxJumps is the kernel's limit of nested chains (NFT_JUMP_STACK_SIZE).
const maxJumps = 16

// run returns the outcome of a chain without its policy.
func (r *ruleset) run(chain string, p packet, depth int) outcome {
	if depth > maxJumps {
		return goesOn
	}
	for _, rule := range r.chains[chain] {
		verdict, matches := (&machine{rules: r, packet: p, registers: map[uint32][]byte{}}).rule(rule)
		if !matches || verdict == nil {
			continue
		}
		switch verdict.Kind {
		case expr.VerdictAccept, expr.VerdictQueue:
			return accepts
		case expr.VerdictDrop:
			return drops
		case expr.VerdictReturn:
			return goesOn
		case expr.VerdictGoto:
			return r.run(verdict.Chain, p, depth+1)
		case expr.VerdictJump:
			if got := r.run(verdict.Chain, p, depth+1); got != goesOn {
				return got
			}
		}
	}
	return goesOn
}

// machine has the registers of one rule. A register that is not there is unknown.
type machine struct {
	rules     *ruleset
	packet    packet
	registers map[uint32][]byte
}

// rule returns the verdict of a rule, nil if it has none. matches is false if a condition is not met or unknown.
func (m *machine) rule(rule *nftables.Rule) (verdict *expr.Verdict, matches bool) {
	for _, e := range rule.Exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			return e, true
		case *expr.Reject:
			return &expr.Verdict{Kind: expr.VerdictDrop}, true
		case *expr.Queue:
			return &expr.Verdict{Kind: expr.VerdictAccept}, true
		case *expr.Target:
			if e.Name == "REJECT" || e.Name == "DROP" {
				return &expr.Verdict{Kind: expr.VerdictDrop}, true
			}
		case *expr.Lookup:
			v, ok := m.lookup(e)
			if !ok || v != nil {
				return v, ok
			}
		default:
			if !m.condition(e) {
				return nil, false
			}
		}
	}
	return nil, true
}

// condition loads or changes a register, or reports whether the packet certainly meets a condition.
func (m *machine) condition(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Meta:
		if !e.SourceRegister {
			m.set(e.Register, m.meta(e.Key))
		}
	case *expr.Ct:
		m.set(e.Register, m.conntrack(e.Key))
	case *expr.Fib:
		m.set(e.Register, nil)
	case *expr.Payload:
		m.set(e.DestRegister, nil)
	case *expr.Exthdr:
		m.set(e.DestRegister, nil)
	case *expr.Bitwise:
		m.set(e.DestRegister, bitwise(m.get(e.SourceRegister), e))
	case *expr.Immediate:
		m.set(e.Register, e.Data)
	case *expr.Cmp:
		return m.compare(e)
	case *expr.Match:
		return m.iptablesMatch(e)
	case *expr.Range, *expr.Limit, *expr.Connlimit, *expr.Quota:
		return false
	}
	return true
}

func (m *machine) get(register uint32) []byte { return m.registers[wide(register)] }

func (m *machine) set(register uint32, value []byte) { m.registers[wide(register)] = value }

// wide returns the number of the 32-bit register at which a register of 16 bytes begins.
func wide(register uint32) uint32 {
	if register >= unix.NFT_REG_1 && register <= unix.NFT_REG_4 {
		return unix.NFT_REG32_00 + 4*(register-unix.NFT_REG_1)
	}
	return register
}

// meta returns the value of a property of the packet, nil if it is unknown.
func (m *machine) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyIIFNAME:
		return ifName(m.packet.in)
	case expr.MetaKeyOIFNAME:
		return ifName(m.packet.out)
	case expr.MetaKeyIIFGROUP:
		return group(m.packet.in)
	case expr.MetaKeyOIFGROUP:
		return group(m.packet.out)
	case expr.MetaKeyMARK:
		return word(m.packet.mark)
	case expr.MetaKeyNFPROTO:
		if m.packet.six {
			return []byte{unix.NFPROTO_IPV6}
		}
		return []byte{unix.NFPROTO_IPV4}
	case expr.MetaKeyL4PROTO:
		return []byte{unix.IPPROTO_TCP}
	}
	return nil
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func ifName(name string) []byte {
	if name == "" {
		return nil
	}
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

func group(name string) []byte {
	if name == "" {
		return nil
	}
	return word(network.LinkGroup)
}

func (m *machine) conntrack(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		return word(m.packet.state)
	case expr.CtKeySTATUS:
		return word(0) // no address is translated
	}
	return nil
}

func bitwise(value []byte, e *expr.Bitwise) []byte {
	if value == nil || len(value) != len(e.Mask) || len(value) != len(e.Xor) {
		return nil
	}
	result := make([]byte, len(value))
	for i := range value {
		result[i] = value[i]&e.Mask[i] ^ e.Xor[i]
	}
	return result
}

// compare compares a register. A shorter operand compares the beginning, as in iifname "bg*".
func (m *machine) compare(e *expr.Cmp) bool {
	value := m.get(e.Register)
	if value == nil || len(e.Data) > len(value) {
		return false
	}
	switch order := bytes.Compare(value[:len(e.Data)], e.Data); e.Op {
	case expr.CmpOpEq:
		return order == 0
	case expr.CmpOpNeq:
		return order != 0
	}
	return false
}

// iptablesMatch evaluates an extension of iptables: of conntrack's options only the states are known.
func (m *machine) iptablesMatch(e *expr.Match) bool {
	info, ok := e.Info.(*xt.ConntrackMtinfo3)
	const onlyState = 1 // XT_CONNTRACK_STATE
	if !ok {
		return e.Name == "comment"
	}
	if info.MatchFlags != onlyState {
		return false
	}
	return (uint32(info.StateMask)&m.packet.state != 0) == (info.InvertFlags&onlyState == 0)
}

// lookup finds a register in a set, or the verdict of a map. ok is false if it is not there or unknown.
func (m *machine) lookup(e *expr.Lookup) (verdict *expr.Verdict, ok bool) {
	key := m.get(e.SourceRegister)
	if key == nil {
		return nil, false
	}
	found := find(m.rules.elements(e.SetName), key)
	switch {
	case e.IsDestRegSet && found != nil: // a map; its values are unknown unless they are verdicts
		v := verdictOf(found.Val)
		return v, v != nil
	case e.IsDestRegSet:
		return nil, false
	}
	return nil, (found != nil) != e.Invert
}

// verdictOf decodes the verdict of an element. It returns nil for other values.
func verdictOf(value []byte) *expr.Verdict {
	attributes, err := netlink.NewAttributeDecoder(value)
	if err != nil {
		return nil
	}
	attributes.ByteOrder = binary.BigEndian
	var v *expr.Verdict
	for attributes.Next() {
		switch kind := attributes.Type(); {
		case kind == unix.NFTA_VERDICT_CODE:
			v = &expr.Verdict{Kind: expr.VerdictKind(int32(attributes.Uint32()))}
		case kind == unix.NFTA_VERDICT_CHAIN && v != nil:
			v.Chain = attributes.String()
		}
	}
	if attributes.Err() != nil {
		return nil
	}
	return v
}

// find returns the element that contains a key, or nil.
func find(elements []nftables.SetElement, key []byte) *nftables.SetElement {
	var last *nftables.SetElement // the last boundary up to the key
	ranges := false
	for i := range elements {
		e := &elements[i]
		ranges = ranges || e.IntervalEnd
		if bytes.Equal(e.Key, key) && !e.IntervalEnd {
			return e
		}
		if bytes.Compare(e.Key, key) <= 0 && (last == nil || bytes.Compare(e.Key, last.Key) > 0) {
			last = e
		}
	}
	if ranges && last != nil && !last.IntervalEnd && len(key) == unix.IFNAMSIZ { // names with a wildcard
		return last
	}
	return nil
}

// elements returns the elements of a set, none if it cannot be read.
func (r *ruleset) elements(name string) []nftables.SetElement {
	if found, ok := r.sets[name]; ok {
		return found
	}
	found, _ := r.conn.GetSetElements(&nftables.Set{Table: r.table, Name: name})
	r.sets[name] = found
	return found
}
