package link

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
	"boxgate/internal/nightly"
)

// The sysctls in link messages equal the files: a wrong value is never taken for the required one.
func TestConfsAreThoseOfTheFiles(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	ns, err := namespace.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	const name = "bg-test"
	seen := func() map[string]confs {
		v := View{links: map[string]netlink.Link{}, confs: map[string]confs{}}
		if err := v.readLinks(); err != nil {
			t.Fatal(err)
		}
		return v.confs
	}
	if err := namespace.Do(ns, func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1500}, PeerName: "peer"}); err != nil {
			return err
		}
		want := linkSysctls(name)
		if seen()[name].haveValues(want) {
			t.Error("a new interface has the values")
		}
		if err := namespace.WriteSysctls(want); err != nil {
			return err
		}
		if !seen()[name].haveValues(want) {
			t.Error("the values are not known")
		}
		if !confsNamed(name).haveValues(want) || confsNamed("none") != nil {
			t.Error("the values of one interface are not known")
		}
		if (confs)(nil).haveValues(want) || seen()["peer"].haveValues(want) {
			t.Error("an interface has the values of another")
		}
		for _, s := range want {
			other := map[string]string{"0": "1", "1": "0", "8": "1"}[s.Value]
			path := filepath.Join("/proc/sys/net", s.Path)
			if err := os.WriteFile(path, []byte(other), 0); err != nil {
				return err
			}
			if seen()[name].haveValues(want) {
				t.Errorf("%s: %s is taken for %s", s.Path, other, s.Value)
			}
			if err := namespace.WriteSysctls(want); err != nil {
				return err
			}
			if !seen()[name].haveValues(want) {
				t.Errorf("%s: the values are not known", s.Path)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
