package firewall

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/link"
	"boxgate/firewall/network"
	"boxgate/firewall/nft"
	"boxgate/firewall/route"
)

// Leftovers are the objects that gateways left in a network namespace, with any configuration and version of this layout.
type Leftovers struct {
	Links, Rules, Routes, Addresses []string
	Tables                          []string
}

// ErrRunning is returned if a gateway runs in the network namespace.
var ErrRunning = errors.New("a gateway runs in this network namespace")

// FindLeftovers returns the objects that gateways left in the network namespace of the calling thread. pools are the pools of
// the configuration.
func FindLeftovers(pools ...netip.Prefix) (found Leftovers, err error) {
	err = withLeftovers(pools, func(h *netlink.Handle, routing *route.Leftovers) error {
		found.Rules, found.Routes, found.Addresses = routing.Names()
		if found.Links, err = link.Leftovers(h); err != nil {
			return err
		}
		found.Tables, err = ownTables()
		return err
	})
	return found, err
}

// RemoveLeftovers removes them: the interfaces first, so that no box has a way out when the rules go. While a gateway runs
// there, which would restore them, it fails with [ErrRunning].
func RemoveLeftovers(pools ...netip.Prefix) error {
	if err := RemoveLeftoverLinks(); err != nil {
		return err
	}
	err := withLeftovers(pools, func(_ *netlink.Handle, routing *route.Leftovers) error { return routing.Remove() })
	if err != nil {
		return fmt.Errorf("firewall: %w", err)
	}
	tables, err := ownTables()
	if err != nil || len(tables) == 0 {
		return err
	}
	ns, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }()
	table := nft.New(ns, nft.Config{})
	return errors.Join(table.Remove(), table.Close())
}

// RemoveLeftoverLinks removes only the interfaces of boxes, which closes all boxes. It fails as [RemoveLeftovers] does.
func RemoveLeftoverLinks() error {
	if err := CheckNotRunning(); err != nil {
		return err
	}
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return link.DeleteLeftovers(h)
}

func withLeftovers(pools []netip.Prefix, f func(*netlink.Handle, *route.Leftovers) error) error {
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	routing, err := route.FindLeftovers(h, pools...)
	if err != nil {
		return err
	}
	return f(h, routing)
}

func ownTables() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name == network.TableName {
			return []string{"inet " + t.Name}, nil
		}
	}
	return nil, nil
}

// CheckNotRunning returns [ErrRunning] if a gateway runs in the network namespace of the calling thread. A running gateway
// reads the NFLOG group of refused packets, and the kernel lists the reader of each group.
func CheckNotRunning() error {
	f, err := os.Open("/proc/thread-self/net/netfilter/nfnetlink_log")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 && fields[0] == fmt.Sprint(defaultLogGroup) {
			return ErrRunning
		}
	}
	return lines.Err()
}
