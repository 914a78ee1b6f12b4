package firewall

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"boxgate/firewall/namespace"
	"boxgate/firewall/network"
)

// Interfaces that come and go while the gateway starts, such as those of containers at boot, do not keep it from starting.
func TestLinksThatComeAndGoKeepNoGatewayFromStarting(t *testing.T) {
	w := newWorld(t)
	others, err := netlink.NewHandleAt(w.gateway)
	w.must(err)
	t.Cleanup(others.Close)
	pair := func(n int) *netlink.Veth {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("other%da", n)}, PeerName: fmt.Sprintf("other%db", n)}
	}
	for i := range 100 { // the kernel lists so many in several parts
		w.must(others.LinkAdd(pair(i)))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			if others.LinkAdd(pair(100)) == nil {
				_ = others.LinkDel(pair(100))
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	for range 40 {
		w.must(w.fw.Close())
		w.open()
		w.must(w.fw.Prune(t.Context()))
		_, err := w.fw.links.ReadView()
		w.must(err)
	}
}

// Sysctls of boxes' interfaces that other programs changed while no gateway ran are restored at the start, which reads all
// of them in one dump.
func TestSysctlsThatChangedMeanwhileArePutBack(t *testing.T) {
	w := newWorld(t)
	boxes := []Attachment{w.addBox("one", 10), w.addBox("two", 11)}
	name := network.LinkName("two")
	for path, value := range map[string]string{
		"ipv4/conf/%s/rp_filter": "0", "ipv4/conf/%s/arp_ignore": "0", "ipv4/conf/%s/route_localnet": "1", "ipv4/conf/%s/accept_local": "1",
		"ipv4/conf/%s/proxy_arp": "1", "ipv4/conf/%s/forwarding": "0", "ipv6/conf/%s/forwarding": "0", "ipv6/conf/%s/accept_ra": "2",
		"ipv6/conf/%s/accept_redirects": "1", "ipv4/conf/%s/drop_unicast_in_l2_multicast": "0",
	} {
		path = fmt.Sprintf(path, name)
		w.must(w.fw.Close())
		w.must(w.in(w.gateway, func() error { return namespace.WriteSysctls([]namespace.Sysctl{{Path: path, Value: value}}) }))
		w.open()
		if w.fw.links.SysctlsIntact(name) {
			t.Errorf("%s: the wrong value %s was not detected", path, value)
		}
		w.must(errors.Join(w.fw.AddBoxes(t.Context(), boxes)...))
		if !w.fw.links.SysctlsIntact(name) {
			t.Errorf("%s stays %s", path, value)
		}
	}
}
