package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// newTable writes a table with one box in a new network namespace.
func newTable(t testing.TB) (*Table, *Entry) {
	t.Helper()
	ns := emptyNamespace(t)
	tbl := New(ns, Config{Addresses: network.Addresses{
		PoolV4: netip.MustParsePrefix("10.77.0.0/16"), PoolV6: netip.MustParsePrefix("fd77::/64"),
		GatewayV4: netip.MustParseAddr("10.77.0.1"), GatewayV6: netip.MustParseAddr("fd77::1"),
		SinkV4: netip.MustParseAddr("10.77.0.2"), SinkV6: netip.MustParseAddr("fd77::2"),
	}, DNSPort: 5300, ProxyPort: 3129, ExplicitPort: 3128, LogGroup: 1, FlowLimit: 100, Log: zap.NewNop()})
	t.Cleanup(func() { _ = tbl.Close() })
	box := NewEntry("one", netip.MustParseAddr("10.77.0.10"), netip.MustParseAddr("fd77::a"))
	if err := errors.Join(tbl.Install(false), tbl.Register(Registration{Entry: &box})); err != nil {
		t.Fatal(err)
	}
	return tbl, &box
}

func emptyNamespace(t testing.TB) netns.NsHandle {
	t.Helper()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatalf("network namespaces are needed, run as root: %v", err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// opening returns a plan that allows a network.
func opening(prefix string) policy.KernelPlan {
	return policy.KernelPlan{Allowed: parsed(prefix, "198.51.100.250/32"), Protected: parsed("10.0.0.0/8", "fc00::/7")}
}

// chainsAndSets lists the chains and sets of plans and protected ranges in the table, and the target of the box's packets.
func chainsAndSets(t *testing.T, tbl *Table, box *Entry) (there []string, target string) {
	t.Helper()
	c, err := tbl.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		t.Fatal(err)
	}
	sets, err := c.GetSets(table())
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string) {
		if strings.HasPrefix(name, versionPrefix) || strings.HasPrefix(name, shieldPrefix) {
			there = append(there, name)
		}
	}
	for _, ch := range chains {
		add(ch.Name)
	}
	for _, s := range sets {
		add(s.Name)
	}
	slices.Sort(there)
	targets, err := readTargets(c, boxesMap())
	if err != nil {
		t.Fatal(err)
	}
	return there, targets[box.Link]
}

// A version that is not written completely has no effect: the previous plan stays active.
func TestAPlanThatIsNotWholeIsNotPutInForce(t *testing.T) {
	tbl, box := newTable(t)
	if err := tbl.Replace(t.Context(), Change{box, opening("198.51.100.0/28")}); err != nil {
		t.Fatal(err)
	}
	before, target := chainsAndSets(t, tbl, box)
	d := tbl.draft(opening("198.51.100.0/24"), map[string]*shield{})
	d.missing = append(d.missing, &addressSet{d.chain + "_deny4", network.V4, intervals(spans(network.V4, parsed("192.0.2.0/24")))})
	d.missing[len(d.missing)-1].elements = append(d.missing[len(d.missing)-1].elements, nftables.SetElement{Key: []byte{1}})
	if err := tbl.writeDrafts([]*draft{d}); err == nil {
		t.Fatal("a malformed set was taken")
	}
	tbl.Collect()
	if got, to := chainsAndSets(t, tbl, box); !slices.Equal(got, before) || to != target {
		t.Errorf("%v leading to %s, want %v leading to %s", got, to, before, target)
	}
}

// The kernel's answer to a change is lost, and reading back fails as well: the next change finds out which version is
// active.
func TestALostAnswerIsFoundOut(t *testing.T) {
	tbl, box := newTable(t)
	replace := func() {
		t.Helper()
		if err := tbl.Replace(t.Context(), Change{box, opening("198.51.100.0/28")}); err != nil {
			t.Fatal(err)
		}
		tbl.Collect()
	}
	replace()
	for _, happened := range []bool{true, false} {
		d := tbl.draft(opening("198.51.100.0/29"), map[string]*shield{})
		if err := tbl.writeDrafts([]*draft{d}); err != nil {
			t.Fatal(err)
		}
		if old := box.live; happened {
			if err := tbl.switchTo([]move{{box, d.version}}); err != nil {
				t.Fatal(err)
			}
			tbl.setLive(box, old)
		}
		box.liveUnknown = true
		tbl.Collect()
		if there, target := chainsAndSets(t, tbl, box); !slices.Contains(there, target) {
			t.Errorf("packets go to %s, which is not among %v", target, there)
		}
		replace()
		if there, target := chainsAndSets(t, tbl, box); len(there) != 5 || len(tbl.garbage) != 0 || target != box.live.chain {
			t.Errorf("the table holds %v, packets go to %s, %d are to be deleted", there, target, len(tbl.garbage))
		}
	}
}

// A set that rules fill grows with the boxes: a full meter would limit nothing.
func TestSetsOfInterfacesGrow(t *testing.T) {
	t.Parallel()
	tbl, _ := newTable(t)
	c, err := tbl.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	const more = 70_000 // than a size of 16 bits would hold
	sent := &nftables.Set{Table: table(), Name: "sent", KeyType: nftables.TypeIFName}
	for from := 0; from < more; from += 1000 {
		elements := make([]nftables.SetElement, 1000)
		for i := range elements {
			elements[i].Key = ifname(fmt.Sprintf("bg%d", from+i))
		}
		if err := errors.Join(c.SetAddElements(sent, elements), c.Flush()); err != nil {
			t.Fatalf("after %d interfaces: %v", from, err)
		}
	}
}

// Boxes whose plans differ in anything except the version of their policy must not share rules: a field of the plan that
// the digest left out would give a box access that only another one has.
func TestDigestsDifferInEveryField(t *testing.T) {
	t.Parallel()
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, s := range list {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	ports := func(list ...uint16) name.PortSet { return name.PortSet{Ports: list} }
	values := map[reflect.Type][]any{
		reflect.TypeFor[bool](): {false, true},
		reflect.TypeFor[[]netip.Prefix](): {prefixes(), prefixes("0.0.0.0/0"), prefixes("0.0.0.0/1"), prefixes("::/0"),
			prefixes("::ffff:0.0.0.0/96"), prefixes("10.0.0.0/8", "192.0.2.0/24"), prefixes("192.0.2.0/24")},
		reflect.TypeFor[policy.Source](): {policy.Source{}, policy.Source{V4: netip.MustParseAddr("192.0.2.1")}, policy.Source{V6: netip.MustParseAddr("2001:db8::1")},
			policy.Source{V4: netip.MustParseAddr("192.0.2.1"), V6: netip.MustParseAddr("2001:db8::1")}},
		reflect.TypeFor[name.PortSet](): {ports(), name.PortSet{All: true}, ports(0), ports(80), ports(80, 443), ports(443)},
	}
	tbl := New(emptyNamespace(t), Config{})
	whose := map[digest]string{tbl.digest(policy.KernelPlan{}): "the zero plan"}
	fields := reflect.TypeFor[policy.KernelPlan]()
	for i := range fields.NumField() {
		field := fields.Field(i)
		if field.Name == "Version" {
			continue
		}
		if values[field.Type] == nil {
			t.Fatalf("no values for %s", field.Name)
		}
		for _, v := range values[field.Type][1:] {
			var plan policy.KernelPlan
			reflect.ValueOf(&plan).Elem().Field(i).Set(reflect.ValueOf(v))
			d := tbl.digest(plan)
			if other := whose[d]; other != "" {
				t.Errorf("%s: %v has the digest of %s", field.Name, v, other)
			}
			whose[d] = field.Name
		}
	}
	if tbl.digest(policy.KernelPlan{Version: 7}) != tbl.digest(policy.KernelPlan{}) {
		t.Error("the version of a policy keeps boxes from sharing rules")
	}
}

// The kernel is asked for an expression without a trace, and one that no kernel has is missing, not an error.
func TestProbeOfAnExpression(t *testing.T) {
	t.Parallel()
	ns := emptyNamespace(t)
	for _, c := range []struct {
		e    expr.Any
		want bool
	}{{&expr.Counter{}, true}, {&expr.Target{Name: "BOXGATENONE", Info: &xt.Unknown{0, 0, 0, 0}}, false}} {
		if has, err := supports(ns, c.e); has != c.want || err != nil {
			t.Errorf("%T: %v, %v", c.e, has, err)
		}
	}
	if _, err := supports(ns, &expr.Numgen{Register: r1}); err == nil {
		t.Error("another error of the kernel is hidden")
	}
	tbl := New(ns, Config{})
	t.Cleanup(func() { _ = tbl.Close() })
	c, err := tbl.dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseLasting() }()
	if tables, err := c.ListTables(); err != nil || len(tables) != 0 {
		t.Errorf("%d tables are left: %v", len(tables), err)
	}
}
