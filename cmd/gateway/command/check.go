package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host"
	"boxgate/host/listen"
	"boxgate/host/share"
	"boxgate/launcher"
	"boxgate/preflight"
	"boxgate/secrets"
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
			end := o.Waiting("checking")
			findings := allFindings(cmd.Context(), o)
			end()
			return printFindings(cmd, o.JSON, findings)
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
		finding("dashboard", checkDashboard(cfg)),
		finding("limits of boxes", errors.Join(share.CheckShares(cfg), share.CheckMemory(cfg))),
		finding("disk limits", host.CheckDiskLimits(cfg)),
		finding("free space", preflight.CheckFree("state_dir", cfg.StateDir, uint64(cfg.Launcher.Reserve))),
		finding("other images", preflight.CheckImages(cfg)),
		finding("lists of connections", checkLists(firewall.HasNumgen)),
		finding("other firewall rules", checkOtherRules()),
		finding("roots in boxes", checkRoots(cfg)),
		finding("AppArmor", checkAppArmor(cfg)),
		finding("source addresses", checkSources(cfg)),
		finding("secrets", checkSecrets(ctx, cfg)),
		finding("kernel limits", preflight.CheckSupplies("/proc/sys")),
	)
	findings = append(findings, preflight.Launchers("/")...)
	findings = append(findings, certificateFindings(ctx, cfg, time.Now())...)
	if cfg.Snapshots.Enabled() {
		findings = append(findings, finding("shared snapshots", host.CheckSnapshots(ctx, cfg)))
	}
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
			why := strings.TrimPrefix(strings.ReplaceAll(finding.Error(), "\n", "; "), f.What+": ")
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
		err = fmt.Errorf("%s failed, of %d", cli.Count(failed, "check", "checks"), len(findings))
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

// checkLists warns if the kernel counts the connections of a box in one list.
func checkLists(hasNumgen func() (bool, error)) error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // reported by NeedRoot
	}
	has, err := hasNumgen()
	if err == nil && !has {
		err = preflight.Warnf("the kernel lacks the module nft_numgen, so new connections of a box with thousands of live ones take longer: " +
			"load it (modprobe nft_numgen) before the gateway starts")
	}
	return err
}

// checkOtherRules finds rules of the host's own firewall that would block boxes.
func checkOtherRules() error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // reported by NeedRoot
	}
	return firewall.CheckOtherRules()
}

// checkRoots warns of running boxes that lack configured roots.
func checkRoots(cfg config.Config) error {
	if preflight.NeedRoot() != nil {
		return nil //nolint:nilerr // reported by NeedRoot
	}
	return host.CheckRoots(cfg)
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

// checkDashboard warns if the dashboard is off for all but this host.
func checkDashboard(cfg config.Config) error {
	if a := cfg.Admin; a.UI && a.Listen != "" && !a.IsPrivate() {
		return preflight.Warnf("admin.listen: the dashboard is served to this host only, because %s is not on loopback and has no TLS: set admin.tls, or set admin.ui to false", a.Listen)
	}
	return nil
}

// needCertificate requires working sources for the certificates of the admin API and of the public URLs.
func needCertificate(cfg config.Config) error {
	err := errors.Join(host.CheckAdminTLS(cfg), host.CheckRemoteTLS(cfg))
	switch cfg.Ingress.TLS.Mode {
	case "acme":
		return errors.Join(err, host.CheckACME(cfg))
	case "files":
		if _, failed := certs.NewFiles(cfg.Ingress.TLS.Cert, cfg.Ingress.TLS.Key, nil); failed != nil {
			return errors.Join(err, fmt.Errorf("ingress.tls: %w", failed))
		}
	}
	return err
}

// maxShown bounds the number of certificates listed individually.
const maxShown = 20

// certificateFindings reports how long the stored certificates remain valid, the earliest expiry first. Certificates of
// the internal CA are not stored: each run of the gateway issues its own.
func certificateFindings(ctx context.Context, cfg config.Config, now time.Time) []preflight.Finding {
	expiries, err := storedCertificates(ctx, cfg)
	if err != nil {
		return nil // reported by needCertificate
	}
	subjects := slices.SortedFunc(maps.Keys(expiries), func(a, b string) int { return expiries[a].Compare(expiries[b]) })
	var findings []preflight.Finding
	for _, subject := range subjects[:min(len(subjects), maxShown)] {
		findings = append(findings, certificateFinding(subject, expiries[subject], now))
	}
	if more := len(subjects) - maxShown; more > 0 {
		findings = append(findings, finding(fmt.Sprintf("%d more certificates, which expire later", more), nil))
	}
	return append(findings, reachFinding(cfg)...)
}

// storedCertificates returns the expiry of each certificate, by subject.
func storedCertificates(ctx context.Context, cfg config.Config) (map[string]time.Time, error) {
	switch cfg.Ingress.TLS.Mode {
	case "acme":
		storage, err := acme.NewFiles(config.ACMEDir(cfg))
		if err != nil {
			return nil, err
		}
		return acme.StoredExpiries(ctx, storage), nil
	case "files":
		files, err := certs.NewFiles(cfg.Ingress.TLS.Cert, cfg.Ingress.TLS.Key, nil)
		if err != nil {
			return nil, err
		}
		expiries := map[string]time.Time{}
		for _, t := range files.Expiries() {
			expiries[cfg.Ingress.TLS.Cert] = t
		}
		return expiries, nil
	}
	return nil, nil
}

// renewalDays is how many days before its expiry a certificate should have been renewed.
const renewalDays = 7

func certificateFinding(subject string, expires, now time.Time) preflight.Finding {
	days := int(expires.Sub(now).Hours() / 24)
	what := fmt.Sprintf("certificate %s, %s left", subject, cli.Count(max(days, 0), "day", "days"))
	switch {
	case !expires.After(now):
		return finding(what, preflight.Warnf("it expired on %s; if a public URL has this name, look for the reason in the log of the gateway", expires.Format(time.DateOnly)))
	case days < renewalDays:
		return finding(what, preflight.Warnf("it expires on %s and should have been replaced; look for the reason in the log of the gateway", expires.Format(time.DateOnly)))
	}
	return finding(what, nil)
}

// reachFinding lists the ports that certificate issuers must be able to reach, which cannot be checked from this host.
func reachFinding(cfg config.Config) []preflight.Finding {
	if cfg.Ingress.TLS.Mode != "acme" {
		return nil
	}
	var errs []error
	for _, l := range []struct{ key, address, port, challenge string }{
		{"ingress.https", cfg.Ingress.HTTPS, "443", "TLS-ALPN-01"}, {"ingress.http", cfg.Ingress.HTTP, "80", "HTTP-01"},
	} {
		host, port, err := net.SplitHostPort(l.address)
		ip := net.ParseIP(host)
		switch {
		case err != nil:
			errs = append(errs, preflight.Warnf("%s is off, so issuers cannot validate by %s", l.key, l.challenge))
		case ip != nil && ip.IsLoopback():
			errs = append(errs, preflight.Warnf("%s is a loopback address, so issuers cannot validate by %s", l.key, l.challenge))
		case port != l.port:
			errs = append(errs, preflight.Warnf("%s is port %s; issuers connect to port %s for %s, which must lead here", l.key, port, l.port, l.challenge))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, preflight.Warnf("whether ports 80 and 443 can be reached from the internet cannot be checked from here; one of them must be"))
	}
	return []preflight.Finding{finding("certificate issuers", errors.Join(errs...))}
}
