package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/launcher"
	"boxgate/preflight"
	"boxgate/secrets"
	"boxgate/store"
)

// checkSecrets checks the sources without running commands.
func checkSecrets(ctx context.Context, cfg config.Config) error {
	return errors.Join(secrets.Check(ctx, cfg.Secrets.Sources), cfg.Secrets.Exposed())
}

// needStateDir requires a state directory that is private, as the store does, and has room for the store.
func needStateDir(cfg config.Config) error {
	err := store.CheckDir(cfg.StateDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		err = nil // the nearest directory is looked at
	}
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := preflight.NeedWritable("state_dir", cfg.StateDir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, store.FileName)); err == nil {
		return nil // a gateway whose disk has filled up starts, and says what it cannot store
	}
	return preflight.NeedRoom("state_dir", cfg.StateDir)
}

// needStore requires a store that can be opened, or made.
func needStore(cfg config.Config) error {
	if os.Geteuid() != 0 || store.CheckDir(cfg.StateDir) != nil {
		return nil //nolint:nilerr // what is wrong with that has been said
	}
	return store.Check(store.Options{
		Dir: cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Traces: launcher.Traces(cfg.StateDir, cfg.Launcher.RunDir),
	})
}

// needRunDir requires a place for what the launcher keeps while boxes run.
func needRunDir(cfg config.Config) error {
	if err := launcher.CheckRunDir(cfg.StateDir, cfg.Launcher.RunDir); err != nil {
		return err
	}
	return preflight.NeedWritable("launcher.run_dir", launcher.RunDirOf(cfg.StateDir, cfg.Launcher.RunDir))
}

// needKernel tries every kernel feature that boxes need, in network namespaces of its own.
func needKernel(ctx context.Context) error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // which is reported
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
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // which is reported
	}
	return firewall.CheckOtherRules()
}

// needPools requires pools that are not in use elsewhere.
func needPools(cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return nil //nolint:nilerr // no prefixes: validation of the configuration reports that
	}
	found, err := firewall.Overlaps(a.PoolV4, a.PoolV6)
	errs := []error{err}
	for key, pool := range map[string]netip.Prefix{"network.pool_v4": a.PoolV4, "network.pool_v6": a.PoolV6} {
		if found[pool] != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, found[pool]))
		}
	}
	return errors.Join(errs...)
}

// checkSources warns of addresses that boxes can be given to leave from and that the host does not have.
func checkSources(cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil || len(a.Sources) == 0 {
		return nil //nolint:nilerr // validation of the configuration reports that
	}
	has, err := firewall.HostAddresses()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	var errs []error
	for _, source := range a.Sources {
		if !slices.Contains(has, source) {
			errs = append(errs, preflight.Warnf("network.sources: the host does not have %v, so nothing of the boxes with this source address leaves: "+
				"give it to an interface (ip addr add %v dev …)", source, netip.PrefixFrom(source, source.BitLen())))
		}
	}
	return errors.Join(errs...)
}
