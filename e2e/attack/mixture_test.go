package attack

import (
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// torrent sends datagrams from the box to the addresses as fast as it can until stop is called. stop returns their
// number.
func torrent(r *harness.Raider, to ...netip.Addr) (stop func() int) {
	r.T.Helper()
	var sent atomic.Int64
	var done atomic.Bool
	var senders sync.WaitGroup
	for _, a := range to {
		domain, at := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet6{Port: 4444, Addr: a.As16()})
		if a.Is4() {
			at = &unix.SockaddrInet4{Port: 4444, Addr: a.As4()}
		} else {
			domain = unix.AF_INET6
		}
		var fd int
		if err := r.Inside(func() (err error) {
			fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			return err
		}); err != nil {
			r.T.Fatal(err)
		}
		senders.Go(func() {
			defer func() { _ = unix.Close(fd) }()
			for ; !done.Load(); sent.Add(1) {
				_ = unix.Sendto(fd, []byte("torrent"), 0, at)
			}
		})
	}
	return func() int {
		done.Store(true)
		senders.Wait()
		return int(sent.Load())
	}
}

// The box floods destinations that both the old and the new policy deny, during repeated changes between the two, and
// while the rules are flushed and restored. No packet leaves. A destination that only one policy allows proves that
// packets would arrive.
func TestAttackNeverAMixture(t *testing.T) {
	t.Parallel()
	denied, friend := harness.AttackerAt(95), harness.AttackerAt(96)
	open := []string{"203.0.113.0/24", "2001:db8:bad::/48"}
	hosts := []string{denied[0].String() + "/32", denied[1].String() + "/128"}
	custom := func(allowed, denied []string) map[string]any {
		return map[string]any{"mode": "custom", "allowed_cidrs": allowed, "denied_cidrs": denied}
	}
	exceptions := custom(append(open, friend[0].String(), friend[1].String()), []string{"203.0.113.64/26", "2001:db8:bad::40/122"})
	specific := maps.Clone(exceptions)
	specific["precedence"] = "specific"
	for name, policies := range map[string][2]map[string]any{
		"precedence":            {exceptions, specific},
		"deny all, deny some":   {{"mode": "deny-all"}, {"mode": "custom", "denied_cidrs": hosts}},
		"denied inside allowed": {custom(open, hosts), custom(open, append(hosts, "192.0.2.0/24", "2001:db8:3::/48"))},
		"allowed swapped":       {custom([]string{"192.0.2.0/24", "2001:db8:3::/48"}, []string{}), custom([]string{friend[0].String() + "/32", friend[1].String() + "/128"}, []string{})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.SharedCaptured(t)
			r := w.Raid(w.Create(map[string]any{"network_policy": policies[0]}))
			stop := torrent(r, denied[:]...)
			changes := 0
			for end := time.Now().Add(nightly.Size(time.Second, 4*time.Second)); changes < 4 || changes < nightly.Size(100, 400) && time.Now().Before(end); changes += 2 {
				w.SetPolicy(r.Box, policies[0])
				w.SetPolicy(r.Box, policies[1])
				r.Try("udp", netip.AddrPortFrom(friend[changes/2%2], 4444))
			}
			if sent := stop(); sent < 10*changes {
				t.Errorf("only %d packets were sent in %d changes", sent, changes)
			}
			w.Untouched(denied[:]...)
			for _, a := range friend {
				if len(w.Net.Packets(a.String())) == 0 {
					t.Errorf("nothing arrived at %v, which is allowed", a)
				}
			}
		})
	}
	t.Run("flush and restore", func(t *testing.T) {
		t.Parallel()
		w := harness.SharedCaptured(t)
		r := w.Raid(w.Create(map[string]any{"network_policy": map[string]any{"mode": "allow-all"}}))
		metadata := []netip.Addr{netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("fd00:ec2::254")}
		stop := torrent(r, metadata...)
		for range nightly.Size(5, 10) {
			before := w.Restored()
			w.NFT("flush ruleset")
			w.Until("the rules are restored", func() bool { return w.Restored() > before })
		}
		if stop() == 0 {
			t.Error("nothing was sent")
		}
		w.Untouched(metadata...)
		for _, a := range friend {
			r.Try("udp", netip.AddrPortFrom(a, 4444))
		}
		w.AwaitCounted()
		for _, a := range friend {
			if len(w.Net.Packets(a.String())) == 0 {
				t.Errorf("nothing arrived at %v, which is allowed", a)
			}
		}
	})
}
