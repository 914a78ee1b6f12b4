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

// checkSecrets checks the sources of secrets without running their commands.
func checkSecrets(ctx context.Context, cfg config.Config) error {
	return errors.Join(secrets.Check(ctx, cfg.Secrets.Sources), cfg.Secrets.Exposed())
}

// needStateDir requires a private state directory, as the store does, with enough space for the store.
func needStateDir(cfg config.Config) error {
	err := store.CheckDir(cfg.StateDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		err = nil // the nearest existing parent is checked
	}
	if err != nil {
		return fmt.Errorf("state_dir: %w", err)
	}
	if err := preflight.NeedWritable("state_dir", cfg.StateDir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, store.FileName)); err == nil {
		return nil // a gateway with a full disk starts, and reports which writes fail
	}
	return preflight.NeedSpace("state_dir", cfg.StateDir)
}

// needStore requires a store that can be opened or created.
func needStore(cfg config.Config) error {
	if os.Geteuid() != 0 || store.CheckDir(cfg.StateDir) != nil {
		return nil //nolint:nilerr // reported by needStateDir
	}
	return store.Check(store.Options{
		Dir: cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Traces: launcher.TracePatterns(cfg.StateDir, cfg.Launcher.RunDir),
	})
}

// needRunDir requires a writable directory for the launcher's files of running boxes.
func needRunDir(cfg config.Config) error {
	if err := launcher.CheckRunDir(cfg.StateDir, cfg.Launcher.RunDir); err != nil {
		return err
	}
	return preflight.NeedWritable("launcher.run_dir", launcher.RunDirOf(cfg.StateDir, cfg.Launcher.RunDir))
}

// needKernel tries every kernel feature that boxes need, in temporary network namespaces.
func needKernel(ctx context.Context) error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // reported by NeedRoot
	}
	if err := firewall.Probe(ctx); err != nil {
		return fmt.Errorf("this kernel lacks features that boxes need: %w; it must have nftables with tproxy, socket and "+
			"connlimit, NFLOG, conntrack, veth and tc with BPF (modprobe -a nf_tables nft_tproxy nft_socket nft_connlimit "+
			"nfnetlink_log nf_conntrack_netlink veth cls_bpf sch_ingress)", err)
	}
	return nil
}

// checkOtherRules finds rules of the host's own firewall that would block boxes.
func checkOtherRules() error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // reported by NeedRoot
	}
	return firewall.CheckOtherRules()
}

// checkAppArmor warns of profiles that hinder the gateway or its boxes.
func checkAppArmor(cfg config.Config) error {
	runtime := ""
	if cfg.Launcher.Enabled {
		runtime = cfg.Launcher.Runtime
	}
	return preflight.CheckAppArmor("/", runtime)
}

// needPools requires address pools that the host does not use elsewhere.
func needPools(cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return nil //nolint:nilerr // no prefixes: reported by the validation of the configuration
	}
	found, err := firewall.OverlappingPools(a.PoolV4, a.PoolV6)
	errs := []error{err}
	for key, pool := range map[string]netip.Prefix{"network.pool_v4": a.PoolV4, "network.pool_v6": a.PoolV6} {
		if found[pool] != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, found[pool]))
		}
	}
	return errors.Join(errs...)
}

// checkSources warns of configured source addresses that the host does not have.
func checkSources(cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil || len(a.Sources) == 0 {
		return nil //nolint:nilerr // reported by the validation of the configuration
	}
	has, err := firewall.HostAddresses()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	var errs []error
	for _, source := range a.Sources {
		if !slices.Contains(has, source) {
			errs = append(errs, preflight.Warnf("network.sources: the host does not have %v, so boxes with this source address have no outgoing traffic: "+
				"give it to an interface (ip addr add %v dev …)", source, netip.PrefixFrom(source, source.BitLen())))
		}
	}
	return errors.Join(errs...)
}
