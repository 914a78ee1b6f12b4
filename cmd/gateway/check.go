package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"boxgate/store"
)

// finding is one thing the gateway needs of its host: nil Err if it is there.
type finding struct {
	What string
	Err  error
}

// warning is a finding that keeps nothing from working.
type warning struct{ error }

func warnf(format string, args ...any) error { return warning{fmt.Errorf(format, args...)} }

// hostFindings looks at everything `gateway serve` needs before it opens anything. Each error says what to do.
func hostFindings(ctx context.Context, cfg config) []finding {
	return []finding{
		{"root", needRoot()},
		{"state directory", needStateDir(cfg)},
		{"IPv6", needIPv6()},
		{"control groups", needCgroups()},
		{"runtime " + cfg.Launcher.Runtime, needTool(cfg.Launcher.Runtime)},
		{"image " + cfg.Launcher.Images["default"], needImage(cfg)},
		{"overlayfs", needFilesystem("overlay")},
		{"id-mapped mounts", needMappedMounts(cfg)},
		{"kernel network", needKernel(ctx)},
		{"pools", needPools(cfg)},
		{"descriptors", needDescriptors()},
		{"resolvers", needResolvers(cfg)},
		{"roots of upstreams", needRoots(cfg)},
		{"certificate of public URLs", needCertificate(cfg)},
	}
}

// hostError returns all lacks as one error, or nil.
func hostError(ctx context.Context, cfg config) error {
	var errs []error
	for _, f := range hostFindings(ctx, cfg) {
		errs = append(errs, f.Err)
	}
	return errors.Join(errs...)
}

// newCheckCommand is `gateway check`.
func newCheckCommand(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration and the host, and say how to fix each lack",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printFindings(cmd, o.json, allFindings(cmd.Context(), o.load))
		},
	}
}

// allFindings are those of the configuration and of the host. What could be read of a wrong configuration is looked at
// too, so that one mistake does not hide the next; only its sockets are not opened.
func allFindings(ctx context.Context, load func() (config, error)) []finding {
	cfg, err := load()
	findings := append([]finding{{"configuration", err}}, hostFindings(ctx, cfg)...)
	findings = append(findings, finding{"shares of boxes", errors.Join(checkShares(cfg), checkMemory(cfg))}, finding{"other images", checkImages(cfg)},
		finding{"rules of other programs", checkOtherRules()}, finding{"secrets", checkSecrets(ctx, cfg)},
		finding{"supplies of the kernel", checkSupplies("/proc/sys")})
	switch {
	case store.InUse(cfg.StateDir):
		findings = append(findings, finding{"gateway", warnf("is already running with the state directory %s, so its sockets were not tried", cfg.StateDir)})
	case err == nil:
		findings = append(findings, finding{"listeners", checkListen(ctx, cfg)})
	}
	return findings
}

// lacksOf returns the single mistakes that were joined to one error.
func lacksOf(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, lacksOf(e)...)
	}
	return out
}

// printFindings prints every finding and fails if one is a lack; warnings are none.
func printFindings(cmd *cobra.Command, asJSON bool, findings []finding) error {
	var lacks int
	rows := [][]string{}
	list := []map[string]any{}
	for _, f := range findings {
		if f.Err == nil {
			rows = append(rows, []string{"ok", f.What, ""})
			list = append(list, map[string]any{"what": f.What, "ok": true, "error": ""})
			continue
		}
		for _, lack := range lacksOf(f.Err) {
			why := strings.ReplaceAll(lack.Error(), "\n", "; ")
			if errors.As(lack, new(warning)) {
				rows = append(rows, []string{"warns", f.What, why})
				list = append(list, map[string]any{"what": f.What, "ok": true, "error": "", "warning": why})
				continue
			}
			lacks++
			rows = append(rows, []string{"LACKS", f.What, why})
			list = append(list, map[string]any{"what": f.What, "ok": false, "error": why})
		}
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

// checkListen opens every TCP and UDP socket of the configuration and closes it again. For the Unix socket it only looks,
// as making it would leave a directory, or take away the socket of a gateway that was killed.
func checkListen(ctx context.Context, cfg config) error {
	a, err := newAddresses(cfg.Network)
	if err != nil {
		return err
	}
	var errs []error
	if cfg.Admin.Socket != "" {
		if err := checkSocket(cfg.Admin.Socket); err != nil {
			errs = append(errs, fmt.Errorf("admin.socket: %w", err))
		}
		cfg.Admin.Socket = ""
	}
	l, err := listen(ctx, cfg, a)
	if err == nil {
		l.Close()
	}
	return errors.Join(append(errs, err)...)
}
