package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"boxgate/firewall/network"
	"boxgate/policy/name"
)

// Static chains.
const (
	chainAbout      = "about"         // identifies the gateway that wrote the table
	chainGuard      = "guard"         // prerouting, before defragmentation and conntrack
	chainGuardBox   = "guard_box"     // checks that the source is the box's
	chainSource     = "guard_source"  // the same, for boxes with their own send rate
	chainShape      = "guard_shape"   // per family: fragments, options, extension headers
	chainForeign    = "guard_foreign" // per family: packets from other interfaces
	chainJudge      = "judge"         // prerouting, after conntrack
	chainJudgeBox   = "judge_box"     // rules for every box
	chainKnown      = "judge_known"   // connections that have been answered
	chainAnswer     = "judge_answer"
	chainRelated    = "judge_related" // ICMP errors
	chainOwn        = "judge_own"     // to the gateway's addresses and the sink
	chainProxy      = "to_proxy"
	chainPass       = "pass"
	chainPassNew    = "pass_new" // first packets of a connection
	chainPassICMP   = "pass_icmp"
	chainPing       = "pass_ping"
	chainGateway    = "to_gateway"
	chainLookup     = "to_dns" // over UDP
	chainLookupTCP  = "to_dns_tcp"
	chainAdmit      = "admit"         // limits forwarded connections
	chainAdmitOwn   = "admit_gateway" // limits connections to the gateway
	chainAnswers    = "answers"       // output, before conntrack
	chainInput      = "input"
	chainInputBox   = "input_box" // from a box
	chainForward    = "forward"
	chainForwardOut = "forward_out" // from a box
	chainForwardIn  = "forward_in"  // to a box
	chainKeep       = "keep"        // prerouting, before other programs translate destinations
	chainHide       = "hide"
	chainHideBox    = "hide_box" // from a box
	chainLeak       = "leak"
	chainClosed     = "closed"         // boxes without a plan
	chainReject     = "answer_refusal" // not an nft keyword, so that a saved ruleset loads again
)

// Refusals are the kernel's reasons to refuse a packet. Each has a chain "refuse_<reason>". For a packet that
// matched no rule, the policy decides whether the event is not_allowed or deny_all.
var Refusals = []name.Reason{
	name.ReasonSpoofed, name.ReasonProtocol, name.ReasonHostPort, name.ReasonProtectedRange,
	name.ReasonDeniedCIDR, name.ReasonNotAllowed, name.ReasonUnknownBox, name.ReasonLimit, name.ReasonSourceAddress,
}

// Counters of packets that are dropped without an event.
const (
	countForeign     = "foreign"     // pool addresses on another interface than a box's
	countNeighbour   = "neighbour"   // neighbour discovery: both ends have permanent entries
	countInvalid     = "invalid"     // conntrack does not recognise it
	countStray       = "stray"       // an answer, or an ICMP error, about a connection that the gateway did not open
	countNoProxy     = "no_proxy"    // the transparent proxy does not listen
	countPings       = "ping_rate"   // echo requests over the limit
	countUnjudged    = "unjudged"    // passed prerouting without a mark of the judge chain
	countMoved       = "moved"       // another program translated the destination
	countUnsolicited = "unsolicited" // packet into a box that is not an answer
	countLeak        = "leak"        // would have left the host with a pool address
	countSent        = "send_rate"   // a box exceeded its send rate
	countAbsent      = "absent"      // would have left from an address that the host does not have
)

var silent = []string{countForeign, countNeighbour, countInvalid, countStray, countNoProxy, countPings, countUnjudged,
	countMoved, countUnsolicited, countLeak, countSent, countAbsent}

func refuse(reason name.Reason) match { return jumpTo("refuse_" + string(reason)) }

// staticSets are the sets and maps of the static chains.
type staticSets struct {
	sources  map[network.Family]*nftables.Set // interface . address: allowed sources of a box
	boxes    *nftables.Set                    // interface → the chain of the box's plan
	marks    *nftables.Set                    // interface → connection mark
	replies  *nftables.Set                    // interface . connection mark of the box's forwarded connections
	flows    *nftables.Set                    // connection marks of forwarded connections
	pings    *nftables.Set                    // echo requests per interface
	sent     *nftables.Set                    // bytes sent by boxes, per interface
	most     *nftables.Set                    // the same for boxes whose own send rate has a bound
	sends    *nftables.Set                    // interface → the chain of a box with its own send rate
	forwards census                           // forwarded connections
	notes    *nftables.Set                    // interfaces with forwarded connections
	accepts  census                           // connections to the gateway
	leaves   map[network.Family]*nftables.Set // address of a box → address of the host that its connections leave from
}

// newStaticSets describes the sets. They are hashes, whose elements change atomically with rules.
func newStaticSets() *staticSets {
	host := binaryutil.NativeEndian // names and marks are in the host's byte order, otherwise nft shows them wrongly
	s := &staticSets{
		sources: map[network.Family]*nftables.Set{},
		leaves:  map[network.Family]*nftables.Set{network.V4: leavesMap(network.V4), network.V6: leavesMap(network.V6)},
		boxes:   boxesMap(),
		sends:   sendsMap(),
		marks: &nftables.Set{Name: "marks", IsMap: true, KeyType: nftables.TypeIFName, KeyByteOrder: host,
			DataType: nftables.TypeMark},
		replies: &nftables.Set{Name: "replies", Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeMark)},
		flows: &nftables.Set{Name: "flows", KeyType: nftables.TypeMark, KeyByteOrder: host},
		notes: notesSet(),
	}
	for _, f := range network.Families {
		s.sources[f] = &nftables.Set{Name: "sources" + suffix(f), Concatenation: true,
			KeyType: nftables.MustConcatSetType(nftables.TypeIFName, addrType(f))}
	}
	for _, set := range []*nftables.Set{s.marks, s.replies, s.flows, s.sources[network.V4], s.sources[network.V6]} {
		set.Table = table()
	}
	return s
}

// boxesMap maps the interface of a box to the chain of its plan.
func boxesMap() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "boxes", IsMap: true, KeyType: nftables.TypeIFName,
		KeyByteOrder: binaryutil.NativeEndian, DataType: nftables.TypeVerdict}
}

// declareSets creates the missing sets of the static chains.
func (t *txn) declareSets() *staticSets {
	s := newStaticSets()
	for _, set := range []*nftables.Set{s.sources[network.V4], s.sources[network.V6], s.boxes, s.sends, s.marks, s.replies, s.flows,
		s.leaves[network.V4], s.leaves[network.V6]} {
		t.set(set)
	}
	s.pings, s.sent, s.most = t.meter("pings"), t.meter(sentSet), t.meter(mostSet)
	s.forwards, s.accepts, s.notes = t.census("forwards"), t.census("accepts"), t.set(notesSet())
	return s
}

// sentSet is the meter of the bytes that boxes send.
const sentSet = "sent"

// mostSet is the same meter for boxes whose own send rate has a bound. An element keeps the rate that it was created with.
const mostSet = "sent_most"

// meterTimeout is how long a meter keeps an idle interface.
const meterTimeout = time.Hour

// The sets that rules fill are keyed by the interface of a box, of which boxes cannot make more, and have no size. A full
// set would make a meter limit nothing, and for a set with a size the kernel allocates all buckets in advance: a mebibyte
// for 65,535 interfaces, in some twenty sets. Without a size, a set grows with its interfaces.

// meter creates a set of per-interface state that rules fill. Entries expire after an hour without use.
func (t *txn) meter(name string) *nftables.Set {
	return t.set(&nftables.Set{Name: name, Dynamic: true, HasTimeout: true, Timeout: meterTimeout,
		KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian})
}

func (t *txn) declareCounters() {
	names := append([]string(nil), silent...)
	for _, r := range Refusals {
		names = append(names, refusalCounter(r))
	}
	for _, n := range names {
		t.c.AddObj(&nftables.NamedObj{Table: t.table, Name: n, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	}
}

// declareChains creates all static chains before any rule, so that rules can refer to any chain.
func (t *txn) declareChains() {
	for _, name := range []string{chainGuardBox, chainSource, chainJudgeBox, chainKnown, chainAnswer, chainRelated, chainOwn, chainProxy,
		chainPass, chainPassNew, chainPassICMP, chainPing, chainGateway, chainLookup, chainLookupTCP, chainAdmit, chainAdmitOwn, chainInputBox, chainForwardOut, chainForwardIn,
		chainHideBox, chainClosed, chainReject} {
		t.chain(name)
	}
	for _, f := range network.Families {
		t.chain(chainShape + suffix(f))
		t.chain(chainForeign + suffix(f))
	}
	for _, r := range Refusals {
		t.chain("refuse_" + string(r))
	}
	// Before defragmentation (-400): fragments are refused as fragments, and never fill the host's reassembly memory.
	t.hook(chainGuard, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityConntrackDefrag-50)
	t.hook(chainJudge, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityMangle)
	t.hook(chainKeep, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest-1)
	t.hook(chainAnswers, nftables.ChainTypeFilter, nftables.ChainHookOutput, *nftables.ChainPriorityRaw)
	t.hook(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter)
	t.hook(chainForward, nftables.ChainTypeFilter, nftables.ChainHookForward, *nftables.ChainPriorityFilter)
	t.hook(chainHide, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	t.hook(chainLeak, nftables.ChainTypeFilter, nftables.ChainHookPostrouting, *nftables.ChainPriorityConntrackHelper)
}

// writeRefusals fills the chains that refuse a packet. Each has a total counter and counters per interface (for events that
// represent several packets), and logs a few packets per second and interface.
func (t *txn) writeRefusals(group uint16) {
	for _, r := range Refusals {
		chain := "refuse_" + string(r)
		seen, logged := t.meter(seenSet(r)), t.meter("log_"+string(r))
		t.c.FlushSet(seen)
		t.rule(chain, "", counted(refusalCounter(r)), perInterface(seen, &expr.Counter{}))
		t.rule(chain, "at most 10 a second per box", perInterface(logged, &expr.Limit{Type: expr.LimitTypePkts,
			Rate: 10, Unit: expr.LimitTimeSecond, Burst: 20}), logTo(group, string(r)))
		if r == name.ReasonSpoofed {
			t.rule(chain, "no answer to an address that is not the sender's", drop())
			continue
		}
		t.rule(chain, "the kernel answers only what is for this host", toHost(), jumpTo(chainReject))
	}
	t.rule(chainClosed, "", refuse(name.ReasonNotAllowed))
	t.rule(chainReject, "", proto(unix.IPPROTO_TCP), match{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	t.rule(chainReject, "", match{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH,
		Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}})
}

func refusalCounter(r name.Reason) string { return "refused_" + string(r) }

func seenSet(r name.Reason) string { return "seen_" + string(r) }

// The first packet of a connection that the kernel forwards for a box adds the box's interface to a set, before the
// connection is marked as forwarded. If the set is full, the connection is not marked, and its answers are dropped. After
// erasing a note, the caller must look for connections that it stood for.

// notesSet returns the set of noted interfaces.
func notesSet() *nftables.Set {
	return &nftables.Set{Table: table(), Name: "notes", Dynamic: true, KeyType: nftables.TypeIFName,
		KeyByteOrder: binaryutil.NativeEndian}
}

// addNote adds the interface in register 1 to the set. If that fails it ends the rule.
func addNote(s *nftables.Set) expr.Any {
	return &expr.Dynset{SrcRegKey: r1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD}
}

// eraseNote erases the note of an interface. It need not exist.
func (t *txn) eraseNote(link string) {
	key := nftables.SetElement{Key: ifname(link)}
	t.addElements(notesSet(), []nftables.SetElement{key})
	t.deleteElements(notesSet(), key)
}

// EraseNotes erases the notes of interfaces.
func (tbl *Table) EraseNotes(links []string) error {
	return tbl.transact(func(t *txn) {
		for _, link := range links {
			t.eraseNote(link)
		}
	}, func(*nftables.Conn) (bool, error) { return false, nil })
}

// HasNote reports whether a connection was forwarded for the interface since its note was last erased or the table was made.
// It queries a single element, so that the number of boxes does not matter.
func (tbl *Table) HasNote(link string) (bool, error) {
	c, err := tbl.forQueries()
	if err != nil {
		return true, err
	}
	found, err := hasNote(c, link)
	if err == nil && !found {
		// The set has no note either when another program has deleted the notes or the table. In that case notesKeeper is
		// missing as well.
		if found, err = hasNote(c, notesKeeper); err == nil {
			return !found, nil
		}
	}
	if err == nil {
		return true, nil
	}
	tbl.queries = nil
	go func() { _ = c.Close() }()
	return true, fmt.Errorf("nftables: %w", err)
}

// notesKeeper is an element that stays in the set unless another program empties it. No packet of a box comes from
// loopback.
const notesKeeper = "lo"

// hasNote reports whether an interface is in the set.
func hasNote(c *netlink.Conn, link string) (bool, error) {
	request, err := noteRequest(link)
	if err != nil {
		return false, err
	}
	_, err = c.Execute(request)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// noteRequest returns the request for the note of an interface.
func noteRequest(link string) (netlink.Message, error) {
	return elementsRequest(notesSet().Name, 0, func(e *netlink.AttributeEncoder) error {
		e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_SET_ELEM_KEY, func(e *netlink.AttributeEncoder) error {
				e.Bytes(unix.NFTA_DATA_VALUE, ifname(link))
				return nil
			})
			return nil
		})
		return nil
	})
}
