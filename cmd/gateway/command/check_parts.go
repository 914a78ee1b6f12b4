package command

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/secrets"
	"boxgate/store"
)

// checkSecrets checks the sources without running commands.
func checkSecrets(ctx context.Context, cfg config.Config) error {
	return errors.Join(secrets.Check(ctx, cfg.Secrets.Sources), cfg.Secrets.Exposed())
}

// needStateDir requires a state directory that is private, as the store does.
func needStateDir(cfg config.Config) error {
	if err := store.CheckDir(cfg.StateDir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("state_dir: %w", err)
	}
	return nil
}

// needKernel tries every kernel feature that boxes need, in network namespaces of its own.
func needKernel(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil // NeedRoot reports that
	}
	if err := firewall.Probe(ctx); err != nil {
		return fmt.Errorf("this kernel lacks features that boxes need: %w; it must have nftables with tproxy, socket and "+
			"connlimit, NFLOG, conntrack, veth and tc with BPF (modprobe -a nf_tables nft_tproxy nft_socket nft_connlimit "+
			"nfnetlink_log nf_conntrack_netlink veth cls_bpf sch_ingress)", err)
	}
	return nil
}

// checkOtherRules finds rules of the host's own firewall that keep boxes from working.
func checkOtherRules() error {
	if os.Geteuid() != 0 {
		return nil // NeedRoot reports that
	}
	return firewall.CheckOtherRules()
}

// needPools requires pools that are not in use elsewhere.
func needPools(cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return nil //nolint:nilerr // no prefixes: validation of the configuration reports that
	}
	var errs []error
	for key, pool := range map[string]netip.Prefix{"network.pool_v4": a.PoolV4, "network.pool_v6": a.PoolV6} {
		if err := firewall.CheckPool(pool); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	return errors.Join(errs...)
}
