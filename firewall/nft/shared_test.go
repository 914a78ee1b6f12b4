package nft

import (
	"net/netip"
	"reflect"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

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
