package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/ingress"
	"boxgate/internal/buildinfo"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/preflight"
	"boxgate/proxy"
	"boxgate/store"
)

// Options say what a gateway is made of.
type Options struct {
	Config    config.Config
	Addresses config.Addresses
	Listeners *Listeners // the caller closes them
	Log       *zap.Logger
	NoWatch   bool // for tests: kernel rules that other programs change stay changed
}

// Open builds the gateway's parts and picks up the boxes that are in the store. When it fails, nothing it opened
// stays open; kernel rules stay, so that boxes that run are closed rather than open. A panic of a part is an error.
func Open(ctx context.Context, o Options) (h *Host, err error) {
	err = contained(o.Log, func() (err error) {
		h, err = openParts(ctx, o)
		return err
	})
	return h, err
}

// openParts is Open but for panics.
func openParts(ctx context.Context, o Options) (*Host, error) {
	h := &Host{
		cfg: o.Config, log: o.Log, addrs: o.Addresses, listeners: o.Listeners, noWatch: o.NoWatch, boxes: map[policy.BoxID]*box{},
		minter: &certs.Minter{}, metrics: prometheus.NewRegistry(),
	}
	steps := []func(context.Context) error{
		h.openStore, func(ctx context.Context) error { return fault.At(ctx, "start: store open") },
		h.openAudit, h.openSecrets, h.openEgress, func(ctx context.Context) error { return fault.At(ctx, "start: DNS and proxy made") },
		h.openIngress, h.openLauncher, func(ctx context.Context) error { return fault.At(ctx, "start: launcher open") },
		h.openFirewall, func(ctx context.Context) error { return fault.At(ctx, "start: kernel rules in force") },
		h.recoverBoxes, func(ctx context.Context) error { return fault.At(ctx, "start: boxes known") },
	}
	var err error
	if h.shares, err = raiseDescriptors(); err != nil {
		return nil, err
	}
	shares := memoryOf(o.Config)
	shares.hold()
	h.memory = shares.budget()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, h.closeParts())
		}
	}
	return h, nil
}

// Close releases what Open opened. Rules, links and boxes stay as they are. Call it once, after Serve has returned.
func (h *Host) Close() error { return contained(h.log, h.closeParts) }

func (h *Host) closeParts() error {
	var errs []error
	if h.firewall != nil {
		errs = append(errs, h.firewall.Close(), fault.At(context.Background(), "stop: kernel rules let go"))
	}
	if h.audit != nil {
		h.audit.Flush()
	}
	if h.launcher != nil {
		if len(h.all()) == 0 {
			forgetRun(h.launcher.RunDir())
		}
		errs = append(errs, h.launcher.Close())
	}
	h.secrets.Close()
	if h.store != nil {
		errs = append(errs, h.store.Close())
	}
	return errors.Join(errs...)
}

func (h *Host) openStore(context.Context) error {
	var err error
	h.store, err = store.Open(store.Options{
		Dir: h.cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Traces: launcher.Traces(h.cfg.StateDir, h.cfg.Launcher.RunDir),
	})
	if err != nil {
		return err
	}
	if _, err := h.store.EnsureAPIKey(); err != nil {
		return fmt.Errorf("making the first API key: %w", err)
	}
	// A policy that was staged when the gateway died was never answered for: the old one stays in force.
	cut, err := h.store.DropStaged()
	if err != nil {
		return err
	}
	for _, c := range cut {
		h.log.Warn("an update of a policy was cut short; the policy before it is in force", zap.String("box", string(c.Box)))
	}
	global, err := h.store.GlobalHeaders()
	h.global, h.globalVersion = global.Rules, global.Version
	return err
}

func (h *Host) openAudit(context.Context) error {
	h.audit = audit.New(audit.Options{Logger: h.log})
	return errors.Join(h.metrics.Register(h.audit), h.metrics.Register(memoryMetrics{h.memory}), registerProcess(h.metrics))
}

// registerProcess adds the metrics that every Go program has, and what this one was built from.
func registerProcess(r *prometheus.Registry) error {
	b := buildinfo.Get()
	built := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_build_info", Help: "What the gateway was built from; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
	return errors.Join(
		r.Register(collectors.NewGoCollector()), r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), r.Register(built),
	)
}

// openEgress makes the DNS server and the proxy.
func (h *Host) openEgress(context.Context) error {
	upstreams, err := dnsUpstreams(h.cfg)
	if err != nil {
		return err
	}
	roots, err := rootsWith(h.cfg.Proxy.UpstreamCAFiles)
	if err != nil {
		return err
	}
	h.dns, err = dns.New(dns.Config{
		Boxes: &h.registry, Upstreams: upstreams, SinkV4: h.addrs.SinkV4, SinkV6: h.addrs.SinkV6,
		Audit: h.audit, Log: h.log, Roots: roots, Limits: dnsLimits(h.cfg.Limits), Memory: h.memory,
	})
	if err != nil {
		return fmt.Errorf("dns.upstreams: %w", err)
	}
	domain, err := policy.ParseName(h.cfg.Ingress.Domain)
	if err != nil {
		return fmt.Errorf("ingress.domain: %w", err)
	}
	h.minter.Host = []policy.Name{domain}
	egress := proxy.Config{
		Boxes: &h.registry, Resolver: h.dns, Leaves: h.minter, Audit: h.audit, Log: h.log, Roots: roots,
		Sink:     []netip.Addr{h.addrs.SinkV4, h.addrs.SinkV6},
		Own:      []netip.Addr{h.addrs.GatewayV4, h.addrs.GatewayV6},
		Host:     h.minter.Host,
		DenyPage: h.cfg.Proxy.Deny == "page", IdleTimeout: h.cfg.Proxy.IdleTimeout,
		Secrets: h.secrets, Memory: h.memory,
	}
	limitProxy(h.cfg.Limits, &egress)
	h.shares.apply(&egress)
	h.proxy, err = proxy.New(egress)
	return err
}

// rootsWith returns the system's roots and those of the files.
func rootsWith(files []string) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's root certificates cannot be read: %w", err)
	}
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("proxy.upstream_ca_files: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("proxy.upstream_ca_files: %s holds no PEM certificate", f)
		}
	}
	return roots, nil
}

func (h *Host) openIngress(context.Context) error {
	getCertificate, err := h.urlCertificates()
	if err != nil {
		return err
	}
	h.ingress, err = ingress.New(ingress.Config{
		URLs: &h.urls, GetCertificate: getCertificate, Audit: h.audit, Log: h.log,
	})
	return err
}

// urlCertificates returns the certificate source that ingress.tls.mode asks for.
func (h *Host) urlCertificates() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := h.cfg.Ingress
	if c.TLS.Mode == "files" {
		files, err := certs.NewFiles(c.TLS.Cert, c.TLS.Key, func(err error) {
			h.log.Error("the new certificate of the public URLs does not load; the old one stays", zap.Error(err))
		})
		if err != nil {
			return nil, fmt.Errorf("ingress.tls: %w", err)
		}
		return files.GetCertificate, nil
	}
	ca, err := ensureAuthority("boxgate public URLs", h.store.InstallationCA, h.store.SetInstallationCA)
	if err != nil {
		return nil, err
	}
	h.urlCA = ca
	issued, err := certs.NewIssued(ca, "*."+c.Domain)
	if err != nil {
		return nil, fmt.Errorf("ingress.domain: %w", err)
	}
	return issued.GetCertificate, nil
}

// authority returns the interception CA of a box.
func (h *Host) authority(id policy.BoxID) (*certs.Authority, error) {
	return ensureAuthority("boxgate box "+string(id),
		func() (store.CA, error) { return h.store.CA(id) },
		func(ca store.CA) error { return h.store.SetCA(id, ca) })
}

// ensureAuthority returns the CA that load finds; the first time it makes and keeps one.
func ensureAuthority(name string, load func() (store.CA, error), keep func(store.CA) error) (*certs.Authority, error) {
	stored, err := load()
	if err == nil {
		return certs.LoadCA(stored.CertPEM, stored.KeyPEM)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	ca, err := certs.NewCA(name)
	if err != nil {
		return nil, err
	}
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	return ca, keep(store.CA{CertPEM: ca.CertificatePEM(), KeyPEM: key})
}

func (h *Host) openLauncher(ctx context.Context) error {
	var err error
	h.launcher, err = launcher.New(launcher.Config{
		StateDir: h.cfg.StateDir, ImageDir: config.ImageDir(h.cfg), Runtime: h.cfg.Launcher.Runtime,
		Images: h.cfg.Launcher.Images, RunDir: h.cfg.Launcher.RunDir, Log: h.log,
	})
	if err != nil {
		return err
	}
	for name, gauge := range map[string]struct {
		help  string
		value func() int
	}{
		"boxgate_deleted_boxes_with_files":         {"deleted boxes whose files are still to be removed", func() int { n, _ := h.launcher.Trash(); return n }},
		"boxgate_deleted_boxes_with_failing_files": {"those of them whose files could not be removed", func() int { _, n := h.launcher.Trash(); return n }},
	} {
		if err := h.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: gauge.help},
			func() float64 { return float64(gauge.value()) })); err != nil {
			return err
		}
	}
	return h.launcher.EnsureImage(ctx, "", func(line string) { h.log.Info("image", zap.String("progress", line)) })
}

func (h *Host) openFirewall(ctx context.Context) error {
	var err error
	h.firewall, err = firewall.Open(ctx, firewall.Config{
		PoolV4: h.addrs.PoolV4, PoolV6: h.addrs.PoolV6,
		GatewayV4: h.addrs.GatewayV4, GatewayV6: h.addrs.GatewayV6, SinkV4: h.addrs.SinkV4, SinkV6: h.addrs.SinkV6,
		DNSPort: h.listeners.dnsPort, ProxyPort: h.listeners.proxyPort, ExplicitPort: explicitPort,
		FlowLimit: uint32(h.cfg.Limits.KernelFlows), Explain: h.explainPacket, Audit: h.audit, Log: h.log,
		LastRun: lastRun(h.launcher.RunDir()),
	})
	if err != nil {
		return fmt.Errorf("kernel rules: %w", err)
	}
	return h.reprotect(ctx)
}

// explainPacket gives the kernel's refusals the rule that the policy names.
func (h *Host) explainPacket(r policy.Request) policy.Decision {
	b, err := h.find(r.Box)
	if err != nil {
		return policy.Decision{Reason: policy.ReasonUnknownBox}
	}
	return b.Policy.Load().Decide(r)
}

// NeedResolvers requires upstreams that the DNS server can read.
func NeedResolvers(cfg config.Config) error {
	upstreams, err := dnsUpstreams(cfg)
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range upstreams {
		if _, err := dns.New(dns.Config{Boxes: &registry{}, Audit: audit.New(audit.Options{Logger: zap.NewNop()}),
			SinkV4: netip.IPv4Unspecified(), SinkV6: netip.IPv6Unspecified(), Upstreams: []string{u}}); err != nil {
			errs = append(errs, fmt.Errorf("dns.upstreams: %w", err))
		}
	}
	return errors.Join(errs...)
}

// NeedRoots requires every file of root certificates.
func NeedRoots(cfg config.Config) error {
	var errs []error
	for _, file := range cfg.Proxy.UpstreamCAFiles {
		_, err := rootsWith([]string{file})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// dnsUpstreams returns the configured upstreams, or the host's.
func dnsUpstreams(cfg config.Config) ([]string, error) {
	if len(cfg.DNS.Upstreams) > 0 {
		return cfg.DNS.Upstreams, nil
	}
	a, err := config.AddressesOf(cfg.Network)
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
		return err == nil && slices.Contains(a.Own(), at.Addr())
	})
	if len(servers) == 0 {
		return nil, errors.New("dns.upstreams is empty and /etc/resolv.conf names no server: set dns.upstreams")
	}
	return servers, nil
}

// EnsureImage builds or unpacks an image unless it is there.
func EnsureImage(ctx context.Context, cfg config.Config, image string, progress func(string)) error {
	if err := preflight.NeedRoot(); err != nil {
		return err
	}
	l, err := launcher.New(launcher.Config{
		StateDir: cfg.StateDir, ImageDir: config.ImageDir(cfg), Runtime: cfg.Launcher.Runtime, Images: cfg.Launcher.Images,
	})
	if err != nil {
		return err
	}
	return l.EnsureImage(ctx, image, progress)
}
