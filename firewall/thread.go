package firewall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
)

// inNamespace runs fn on a thread that is in the namespace. A thread that cannot be put back is not used again.
func inNamespace(ns netns.NsHandle, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("network namespace: %w", err)
			return
		}
		defer func() { _ = home.Close() }()
		if err := netns.Set(ns); err != nil {
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fn()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// sysctl is a value under /proc/sys/net. That tree shows the namespace of the thread that opens it.
type sysctl struct {
	path, value string
	optional    bool // some kernels do not have it, and nothing depends on it
}

func readSysctl(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net", path))
	return strings.TrimSpace(string(b)), err
}

// writeSysctls sets what is not set already: writing some of them resets others even when the value stays.
func writeSysctls(values []sysctl) error {
	for _, s := range values {
		have, err := readSysctl(s.path)
		if err == nil && have != s.value {
			err = os.WriteFile(filepath.Join("/proc/sys/net", s.path), []byte(s.value), 0)
		}
		if err != nil && (!s.optional || !errors.Is(err, os.ErrNotExist)) {
			return fmt.Errorf("sysctl net/%s: %w", s.path, err)
		}
	}
	return nil
}

// setSysctls switches forwarding on.
func (f *Firewall) setSysctls() error {
	return inNamespace(f.ns, func() error {
		if err := keepRouterAdvertisements(); err != nil {
			return err
		}
		if err := reportConnections(); err != nil {
			return err
		}
		return writeSysctls([]sysctl{
			// Reverse path checks must look up with the packet's mark, or the routing gate refuses them.
			{path: "ipv4/conf/all/src_valid_mark", value: "1"},
			{path: "ipv4/ip_forward", value: "1"},
			{path: "ipv6/conf/all/forwarding", value: "1"},
			{path: "netfilter/nf_conntrack_acct", value: "1", optional: true},
			{path: "netfilter/nf_conntrack_timestamp", value: "1", optional: true},
		})
	})
}

// reportConnections has the kernel tell of connections where it was told not to: the log would lack all that it forwards.
// Other values are left, since the kernel tells whoever listens.
func reportConnections() error {
	const path = "netfilter/nf_conntrack_events"
	if have, err := readSysctl(path); err != nil || have != "0" {
		return nil //nolint:nilerr // a kernel without it always tells
	}
	return writeSysctls([]sysctl{{path: path, value: "1"}})
}

// keepRouterAdvertisements lets uplinks that have their IPv6 routes from router advertisements keep them: a host that
// forwards ignores advertisements (and drops the routes) where accept_ra is 1, not where it is 2.
func keepRouterAdvertisements() error {
	if on, err := readSysctl("ipv6/conf/all/forwarding"); err != nil || on == "1" {
		return err
	}
	links, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return err
	}
	for _, l := range links {
		path := strings.TrimPrefix(l, "/proc/sys/net/")
		if have, err := readSysctl(path); err == nil && have == "1" {
			if err := writeSysctls([]sysctl{{path: path, value: "2"}}); err != nil {
				return err
			}
		}
	}
	return nil
}
