package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host"
	"boxgate/host/listen"
	"boxgate/host/share"
	"boxgate/preflight"
	"boxgate/store"
)

// serveFindings checks everything that `gateway serve` needs before it opens anything. Each error includes the fix.
func serveFindings(ctx context.Context, cfg config.Config) []preflight.Finding {
	return append(preflight.Check(cfg),
		finding("image "+cfg.Launcher.Images["default"], host.NeedImage(cfg)),
		finding("state directory", needStateDir(cfg)),
		finding("store", needStore(cfg)),
		finding("run directory", needRunDir(cfg)),
		finding("kernel network", needKernel(ctx)),
		finding("pools", needPools(cfg)),
		finding("descriptors", share.NeedDescriptors()),
		finding("resolvers", host.NeedResolvers(cfg)),
		finding("upstream CA roots", host.NeedRoots(cfg)),
		finding("public URL certificate", needCertificate(cfg)),
		finding("disks of boxes", host.NeedDiskLimits(cfg)),
		finding("launched boxes", host.RequireNoBoxes(cfg)),
	)
}

func finding(what string, err error) preflight.Finding {
	return preflight.Finding{What: what, Err: err}
}

// hostError joins all errors that keep the gateway from working, or returns nil.
func hostError(ctx context.Context, cfg config.Config) error {
	if err := preflight.NeedRoot(); err != nil {
		return err // the other checks need root
	}
	var errs []error
	for _, f := range serveFindings(ctx, cfg) {
		if !errors.As(f.Err, new(preflight.Warning)) {
			errs = append(errs, f.Err)
		}
	}
	return errors.Join(errs...)
}

// newCheckCommand is `gateway check`.
func newCheckCommand(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Validate the configuration and the host, with a fix for each problem",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printFindings(cmd, o.JSON, allFindings(cmd.Context(), o))
		},
	}
}

// configurationOf returns the name of the configuration file.
func configurationOf(o *cli.Options) string { return cmp.Or(o.File(), "(no file)") }

// configurationFinding begins the name of the finding about the configuration; the file follows.
const configurationFinding = "configuration "

// runningFinding is the finding for a gateway that is already running.
const runningFinding = "gateway"

// allFindings checks the configuration and the host. The valid parts of an invalid configuration are also checked, so
// that one mistake does not hide the next; only its sockets are not opened.
func allFindings(ctx context.Context, o *cli.Options) []preflight.Finding {
	cfg, err := o.Load()
	findings := append([]preflight.Finding{finding(configurationFinding+configurationOf(o), err)}, serveFindings(ctx, cfg)...)
	findings = append(findings,
		finding("limits of boxes", errors.Join(share.CheckShares(cfg), share.CheckMemory(cfg))),
		finding("disk limits", host.CheckDiskLimits(cfg)),
		finding("free space", preflight.CheckFree("state_dir", cfg.StateDir, uint64(cfg.Launcher.Reserve))),
		finding("other images", preflight.CheckImages(cfg)),
		finding("other firewall rules", checkOtherRules()),
		finding("AppArmor", checkAppArmor(cfg)),
		finding("source addresses", checkSources(cfg)),
		finding("secrets", checkSecrets(ctx, cfg)),
		finding("kernel limits", preflight.CheckSupplies("/proc/sys")),
	)
	findings = append(findings, certificateFindings(ctx, cfg, time.Now())...)
	switch {
	case store.InUse(cfg.StateDir):
		findings = append(findings, finding(runningFinding, preflight.Warnf("is already running with the state directory %s, so its sockets were not checked", cfg.StateDir)))
	case err == nil:
		findings = append(findings, finding("listeners", checkListen(ctx, cfg)))
	}
	return findings
}

// printFindings prints every finding and returns an error if a check failed. Warnings are not failures.
func printFindings(cmd *cobra.Command, asJSON bool, findings []preflight.Finding) error {
	var failed int
	rows := [][]string{}
	list := []map[string]any{}
	for _, f := range findings {
		if f.Err == nil {
			rows = append(rows, []string{"ok", f.What, ""})
			list = append(list, map[string]any{"what": f.What, "ok": true, "error": ""})
			continue
		}
		for _, finding := range preflight.Errors(f.Err) {
			why := strings.ReplaceAll(finding.Error(), "\n", "; ")
			if errors.As(finding, new(preflight.Warning)) {
				rows = append(rows, []string{"warning", f.What, why})
				list = append(list, map[string]any{"what": f.What, "ok": true, "error": "", "warning": why})
				continue
			}
			failed++
			rows = append(rows, []string{"FAILED", f.What, why})
			list = append(list, map[string]any{"what": f.What, "ok": false, "error": why})
		}
	}
	var err error
	if asJSON {
		err = cli.WriteJSON(cmd.OutOrStdout(), list)
	} else {
		err = cli.PaintedTable(cmd.OutOrStdout(), []string{"ok", "warning", "FAILED"}, rows...)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d check(s) failed", failed)
	}
	return err
}

// checkListen opens and closes every TCP and UDP socket of the configuration. It does not open the Unix socket, because
// that would leave a directory behind, or remove the socket of a gateway that was killed.
func checkListen(ctx context.Context, cfg config.Config) error {
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		return err
	}
	var errs []error
	if cfg.Admin.Socket != "" {
		if err := listen.CheckSocket(cfg.Admin.Socket); err != nil {
			errs = append(errs, fmt.Errorf("admin.socket: %w", err))
		}
		if _, err := listen.GroupID(cfg.Admin); err != nil {
			errs = append(errs, err)
		}
		cfg.Admin.Socket = ""
	}
	l, err := listen.Open(ctx, cfg, a, nil, nil)
	if err == nil {
		l.Close()
	}
	return errors.Join(append(errs, err)...)
}
