package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"boxgate/dns"
)

// finding is one thing the gateway needs of its host: nil Err if it is there.
type finding struct {
	What string `json:"what"`
	Err  error  `json:"-"`
}

// hostFindings looks at everything `gateway serve` needs before it opens anything. Each error says what to do.
func hostFindings(cfg config) []finding {
	return []finding{
		{"root", needRoot()},
		{"runtime " + cfg.Launcher.Runtime, needTool(cfg.Launcher.Runtime)},
		{"image " + cfg.Launcher.Images["default"], needImage(cfg)},
		{"overlayfs", needFilesystem("overlay")},
		{"user namespaces", needFile("/proc/self/ns/user", "this kernel has no user namespaces (CONFIG_USER_NS)")},
		{"nftables", needNetfilter()},
		{"resolvers", needResolvers(cfg)},
	}
}

// hostError returns all lacks as one error, or nil.
func hostError(cfg config) error {
	var errs []error
	for _, f := range hostFindings(cfg) {
		errs = append(errs, f.Err)
	}
	return errors.Join(errs...)
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the gateway changes the kernel's network and starts containers: run it as root (sudo)")
	}
	return nil
}

func needTool(name string) error {
	if _, err := exec.LookPath(name); err != nil {
		return fmt.Errorf("%s is missing: apt-get install %s, or name another OCI runtime in launcher.runtime", name, name)
	}
	return nil
}

// needImage requires the tool that builds the default image as long as it is not built.
func needImage(cfg config) error {
	if cfg.Launcher.Images["default"] != "debian" {
		return nil
	}
	if built, err := filepath.Glob(filepath.Join(imageDir(cfg), "debian-*")); err == nil && len(built) > 0 {
		return nil
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return errors.New("mmdebstrap is missing, which builds the debian image: apt-get install mmdebstrap, or name another image in launcher.images")
	}
	return nil
}

func needFilesystem(name string) error {
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[len(fields)-1] == name {
			return nil
		}
	}
	return fmt.Errorf("this kernel has no %s file system: load the module (modprobe %s)", name, name)
}

func needFile(path, otherwise string) error {
	if _, err := os.Stat(path); err != nil {
		return errors.New(otherwise)
	}
	return nil
}

// needNetfilter opens a netfilter socket.
func needNetfilter() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("this kernel has no netfilter netlink (modprobe nf_tables): %w", err)
	}
	return unix.Close(fd)
}

func needResolvers(cfg config) error {
	if _, err := dnsUpstreams(cfg); err != nil {
		return err
	}
	return nil
}

// dnsUpstreams returns the configured upstreams, or the host's.
func dnsUpstreams(cfg config) ([]string, error) {
	if len(cfg.DNS.Upstreams) > 0 {
		return cfg.DNS.Upstreams, nil
	}
	a, err := newAddresses(cfg.Network)
	if err != nil {
		return nil, err
	}
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil, fmt.Errorf("dns.upstreams is empty and the host's resolv.conf cannot be read: %w", err)
	}
	defer file.Close()
	servers, err := dns.UpstreamsFromResolvConf(file)
	if err != nil {
		return nil, fmt.Errorf("dns.upstreams is empty and /etc/resolv.conf: %w", err)
	}
	servers = slices.DeleteFunc(servers, func(s string) bool { // the gateway's own would be a loop
		at, err := netip.ParseAddrPort(s)
		return err == nil && slices.Contains(a.own(), at.Addr())
	})
	if len(servers) == 0 {
		return nil, errors.New("dns.upstreams is empty and /etc/resolv.conf names no server: set dns.upstreams")
	}
	return servers, nil
}

// newCheckCommand is `gateway check`.
func newCheckCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration and the host, and say how to fix each lack",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			findings := append([]finding{{"configuration", nil}}, hostFindings(cfg)...)
			findings = append(findings, finding{"listeners", checkListen(cmd.Context(), cfg)})
			return printFindings(cmd, o.json, findings)
		},
	}
}

// printFindings prints every finding and fails if one is a lack.
func printFindings(cmd *cobra.Command, asJSON bool, findings []finding) error {
	var lacks int
	rows := [][]string{}
	list := []map[string]any{}
	for _, f := range findings {
		mark, why := "ok", ""
		if f.Err != nil {
			mark, why = "LACKS", f.Err.Error()
			lacks++
		}
		rows = append(rows, []string{mark, f.What, why})
		list = append(list, map[string]any{"what": f.What, "ok": f.Err == nil, "error": why})
	}
	var err error
	if asJSON {
		err = writeJSON(cmd.OutOrStdout(), list)
	} else {
		err = table(cmd.OutOrStdout(), rows...)
	}
	if err == nil && lacks > 0 {
		err = fmt.Errorf("%d thing(s) lacking", lacks)
	}
	return err
}

// checkListen opens every socket of the configuration and closes it again.
func checkListen(ctx context.Context, cfg config) error {
	a, err := newAddresses(cfg.Network)
	if err != nil {
		return err
	}
	l, err := listen(ctx, cfg, a)
	if err != nil {
		return err
	}
	l.Close()
	return nil
}
