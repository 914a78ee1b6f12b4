package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/certs"
	"boxgate/dns"
	"boxgate/firewall"
	"boxgate/ingress"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/store"
)

// openHost builds the gateway's parts and picks up the boxes that are in the store. When it fails, nothing it opened
// stays open; kernel rules stay, so that boxes that run are closed rather than open.
func openHost(ctx context.Context, cfg config, addrs addresses, l *listeners, log *zap.Logger) (*host, error) {
	h := &host{
		cfg: cfg, log: log, addrs: addrs, listeners: l, boxes: map[policy.BoxID]*box{}, minter: &certs.Minter{},
		metrics: prometheus.NewRegistry(),
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
	shares := memoryOf(cfg)
	shares.hold()
	h.memory = shares.budget()
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// close releases what openHost opened. Rules, links and boxes stay as they are.
func (h *host) close() error {
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

func (h *host) openStore(context.Context) error {
	var err error
	h.store, err = store.Open(store.Options{
		Dir: h.cfg.StateDir, PassphraseEnv: passphraseVariable, Traces: launcher.Traces(h.cfg.StateDir, h.cfg.Launcher.RunDir),
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
	for _, id := range cut {
		h.log.Warn("an update of a policy was cut short; the policy before it is in force", zap.String("box", string(id)))
	}
	global, err := h.store.GlobalHeaders()
	h.global, h.globalVersion = global.Rules, global.Version
	return err
}

func (h *host) openAudit(context.Context) error {
	h.audit = audit.New(audit.Options{Logger: h.log})
	return errors.Join(h.metrics.Register(h.audit), h.metrics.Register(memoryMetrics{h.memory}), registerProcess(h.metrics))
}

// registerProcess adds the metrics that every Go program has, and what this one was built from.
func registerProcess(r *prometheus.Registry) error {
	b := thisBuild()
	built := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_build_info", Help: "What the gateway was built from; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
	return errors.Join(
		r.Register(collectors.NewGoCollector()), r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), r.Register(built),
	)
}

// openEgress makes the DNS server and the proxy.
func (h *host) openEgress(context.Context) error {
	upstreams, err := dnsUpstreams(h.cfg)
	if err != nil {
		return err
	}
	roots, err := rootsWith(h.cfg.Proxy.UpstreamCAFiles)
	if err != nil {
		return err
	}
	h.dns, err = dns.New(dns.Config{
		Boxes: &h.registry, Upstreams: upstreams, SinkV4: h.addrs.sinkV4, SinkV6: h.addrs.sinkV6,
		Audit: h.audit, Log: h.log, Roots: roots, Limits: h.cfg.Limits.dns(), Memory: h.memory,
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
		Sink:     []netip.Addr{h.addrs.sinkV4, h.addrs.sinkV6},
		Own:      []netip.Addr{h.addrs.gatewayV4, h.addrs.gatewayV6},
		Host:     h.minter.Host,
		DenyPage: h.cfg.Proxy.Deny == "page", IdleTimeout: h.cfg.Proxy.IdleTimeout,
		Secrets: h.secrets, Memory: h.memory,
	}
	h.cfg.Limits.apply(&egress)
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

func (h *host) openIngress(context.Context) error {
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
func (h *host) urlCertificates() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
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
func (h *host) authority(id policy.BoxID) (*certs.Authority, error) {
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

func (h *host) openLauncher(ctx context.Context) error {
	var err error
	h.launcher, err = launcher.New(launcher.Config{
		StateDir: h.cfg.StateDir, ImageDir: imageDir(h.cfg), Runtime: h.cfg.Launcher.Runtime,
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

// imageDir is where unpacked images are kept.
func imageDir(cfg config) string {
	if cfg.Launcher.ImageDir != "" {
		return cfg.Launcher.ImageDir
	}
	return filepath.Join(cfg.StateDir, "images")
}

func (h *host) openFirewall(ctx context.Context) error {
	var err error
	h.firewall, err = firewall.Open(ctx, firewall.Config{
		PoolV4: h.addrs.poolV4, PoolV6: h.addrs.poolV6,
		GatewayV4: h.addrs.gatewayV4, GatewayV6: h.addrs.gatewayV6, SinkV4: h.addrs.sinkV4, SinkV6: h.addrs.sinkV6,
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
func (h *host) explainPacket(r policy.Request) policy.Decision {
	b, err := h.find(r.Box)
	if err != nil {
		return policy.Decision{Reason: policy.ReasonUnknownBox}
	}
	return b.Policy.Load().Decide(r)
}
