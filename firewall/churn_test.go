package firewall

import (
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// Interfaces that come and go while the gateway starts, as those of other containers do when a host boots, do not keep it from starting.
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
		tick := time.NewTicker(5 * time.Millisecond)
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
	}
}
