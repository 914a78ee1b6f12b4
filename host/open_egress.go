package host

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"boxgate/audit"
	"boxgate/boundary"
	"boxgate/boundary/endpoint"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/dns"
	"boxgate/host/approvals"
	"boxgate/host/enforce"
	hostservices "boxgate/host/services"
	"boxgate/host/share"
	"boxgate/host/urls"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/preflight"
	"boxgate/proxy"
)

// dnsLimits returns the limits of the DNS server. Limits that are not configured keep its defaults.
func dnsLimits(l config.Limits, shares share.Descriptors) dns.Limits {
	return dns.Limits{QueriesPerSecond: float64(l.DNSQueries), Burst: 2 * l.DNSQueries, Sockets: shares.DNSSockets()}
}

// limitProxy sets the limits of the proxy.
func limitProxy(l config.Limits, c *proxy.Config) {
	c.MaxConns, c.MaxNewConns, c.MaxInterceptions = l.Connections, l.NewConnections, l.Interceptions
	c.MaxStreams, c.MaxRequests, c.MaxUpstreams, c.PeekTimeout = l.Streams, l.Requests, l.Upstreams, l.PeekTimeout
}

// openEgress makes the DNS server and the proxy.
func (p *parts) openEgress(context.Context) error {
	upstreams, err := dnsUpstreams(p.cfg)
	if err != nil {
		return err
	}
	domain, err := name.Parse(p.cfg.Ingress.Domain)
	if err != nil {
		return fmt.Errorf("ingress.domain: %w", err)
	}
	_, signIn, err := p.signInURL()
	if err != nil {
		return err
	}
	p.urlTable = urls.NewTable(p.cfg.Ingress, signIn.Hostname())
	p.ownURLs = urls.NewOwnURLs(domain, p.listeners.PortOfHTTPS(), p.urlTable, func(c net.Conn, host string) { p.ingress.Visit(c, host) })
	p.inside = &inside{}
	if p.forBoxes, err = hostservices.New(hostservices.Config{
		Services: p.cfg.Network.Services, Boxes: p.boxes, Visits: p.visits, Reach: p.reach, Gateway: p.listeners.Bound(),
	}); err != nil {
		return err
	}
	zone, err := clusterZone(p.cfg.Network.Cluster)
	if err != nil {
		return err
	}
	p.dns, err = dns.New(dns.Config{
		Boxes: p.connected, Upstreams: upstreams, Cluster: zone, SinkV4: p.addrs.SinkV4, SinkV6: p.addrs.SinkV6,
		IsURL: func(n name.Name) bool { return n.IsService() || p.ownURLs.Named(n) }, IsInside: p.inside.Serves, MinGrant: p.cfg.DNS.MinGrant, Audit: p.audit, Log: p.log, Roots: p.roots, Limits: dnsLimits(p.cfg.Limits, p.shares), Memory: p.memory,
	})
	if err != nil {
		return fmt.Errorf("dns.upstreams: %w", err)
	}
	if p.domains, err = urls.NewDomains(urls.DomainsConfig{Rows: p.cfg.Ingress.Domains, Log: p.log, Store: p.store.URLs, Keys: p.store.Keys, Text: p.dns.LookupText}); err != nil {
		return err
	}
	p.orders = urls.NewOrders(p.urlTable, p.domains, p.quotas)
	if err := p.metrics.Register(p.dns); err != nil {
		return err
	}
	p.minter = &certs.Minter{HostDomains: []name.Name{domain}}
	egress := proxy.Config{
		Boxes: p.connected, Resolver: hostservices.Resolver{Resolver: p.dns, Services: p.forBoxes}, Services: p.forBoxes, Leaves: p.minter, SSHKeys: p.minter, Audit: p.audit, Log: p.log, Roots: p.roots,
		Sink:     []netip.Addr{p.addrs.SinkV4, p.addrs.SinkV6},
		Own:      []netip.Addr{p.addrs.GatewayV4, p.addrs.GatewayV6},
		Host:     p.minter.HostDomains,
		URLs:     p.ownURLs,
		Inside:   p.inside,
		DenyPage: p.cfg.Proxy.Deny == "page", IdleTimeout: p.cfg.Proxy.IdleTimeout,
		Secrets: p.keySecrets, Tokens: p.tokens, Memory: p.memory, Meter: p.models,
	}
	limitProxy(p.cfg.Limits, &egress)
	p.shares.Apply(&egress)
	if p.proxy, err = proxy.New(egress); err != nil {
		return err
	}
	p.secrets.SetHolders(p.proxy)
	return nil
}

// inside is the endpoint for boxes, which is opened after the DNS server and the proxy. Until then no box has it.
type inside struct {
	opened atomic.Pointer[endpoint.Endpoint]
}

// Serves reports whether the requests of a box to a host are for the endpoint.
func (i *inside) Serves(box *policy.Box, host name.Name) bool {
	if host != boundary.Name {
		return false
	}
	e := i.opened.Load()
	return e != nil && e.Serves(box, host)
}

// ServeBox answers a request of a box.
func (i *inside) ServeBox(box *policy.Box, w http.ResponseWriter, r *http.Request) {
	i.opened.Load().ServeBox(box, w, r)
}

// Asked implements [exchange.Inside].
func (i *inside) Asked(box *policy.Box, d boundary.Denial) string {
	if e := i.opened.Load(); e != nil {
		return e.Asked(box, d)
	}
	return ""
}

// openApprovals opens the requests of boxes for access, and the endpoint where boxes make them.
func (o *opening) openApprovals(context.Context) (err error) {
	p, c := o.parts, o.parts.cfg.Approvals
	settings := approvals.Config{
		Log: p.log, Store: p.store.Approvals, Records: p.store.Boxes, Boxes: p.boxes, Rules: o.policies, Trail: p.trail.Log(),
		Enabled: c.Enabled, EveryBox: c.EveryBox, FourEyes: c.FourEyes, Automatic: c.Automatic,
	}
	if c.Reviewer.URL != "" {
		settings.Reviewer = approvals.NewWebhook(c.Reviewer.URL, func(ctx context.Context) (name.Secret, error) { return p.secrets.Secret(ctx, c.Reviewer.Secret) }, p.roots)
	}
	if o.approvals, err = approvals.New(settings); err != nil || !c.Enabled {
		return err
	}
	if err := p.metrics.Register(o.approvals); err != nil {
		return err
	}
	p.inside.opened.Store(endpoint.New(&approvals.Inside{Service: o.approvals, Decisions: o.events, Authorities: o.authorities, Headers: o.policies.HeaderPatterns}))
	return nil
}

// introduction returns the introduction for agents in boxes, which describes the endpoint; nil if not every box has it.
func (p *parts) introduction() []byte {
	if !p.cfg.Approvals.Enabled || !p.cfg.Approvals.EveryBox {
		return nil
	}
	return []byte(boundary.Agents)
}

// clusterZone returns the domain of the cluster for the DNS server; nil if there is no cluster.
func clusterZone(c config.Cluster) (*dns.Zone, error) {
	if !c.IsSet() {
		return nil, nil
	}
	domain, err := c.Name()
	if err != nil {
		return nil, fmt.Errorf("network.cluster.domain: %w", err)
	}
	return &dns.Zone{Domain: domain, Upstreams: c.DNS}, nil
}

// dnsUpstreams returns the configured upstreams, or else the servers of the host's resolv.conf.
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
	servers = slices.DeleteFunc(servers, func(s string) bool { // the gateway's own addresses would be a loop
		at, err := netip.ParseAddrPort(s)
		return err == nil && slices.Contains(a.Own(), at.Addr())
	})
	if len(servers) == 0 {
		return nil, errors.New("dns.upstreams is empty and /etc/resolv.conf names no server: set dns.upstreams")
	}
	return servers, nil
}

// NeedResolvers returns an error for upstreams that the DNS server cannot parse.
func NeedResolvers(cfg config.Config) error {
	upstreams, err := dnsUpstreams(cfg)
	if err != nil {
		return err
	}
	var errs []error
	for _, u := range upstreams {
		if _, err := dns.New(dns.Config{Boxes: &enforce.Registry{}, Audit: audit.New(audit.Options{}),
			SinkV4: netip.IPv4Unspecified(), SinkV6: netip.IPv6Unspecified(), Upstreams: []string{u}}); err != nil {
			errs = append(errs, fmt.Errorf("dns.upstreams: %w", err))
		}
	}
	for _, u := range cfg.Network.Cluster.DNS {
		if _, err := dns.New(dns.Config{Boxes: &enforce.Registry{}, Audit: audit.New(audit.Options{}),
			SinkV4: netip.IPv4Unspecified(), SinkV6: netip.IPv6Unspecified(), Upstreams: []string{u}}); err != nil {
			errs = append(errs, fmt.Errorf("network.cluster.dns: %w", err))
		}
	}
	return errors.Join(errs...)
}

// upstreamKey is the configuration key of the additional roots trusted for upstream servers.
const upstreamKey = "proxy.upstream_ca_files"

// rootsWith returns the system's roots and those in files. Errors mention key, the configuration key of files.
func rootsWith(key string, files []string) (*x509.CertPool, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's root certificates cannot be read: %w", err)
	}
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: %s holds no PEM certificate", key, f)
		}
	}
	return roots, nil
}

// CheckRoots warns of running launched boxes that lack roots of proxy.upstream_ca_files.
func CheckRoots(cfg config.Config) error {
	roots, err := AddedRoots(cfg.Proxy.UpstreamCAFiles)
	if err != nil || !cfg.Launcher.Enabled {
		return nil //nolint:nilerr // reported by NeedRoots
	}
	old, err := launcher.WithOldRoots(launcher.Config{StateDir: cfg.StateDir, RunDir: cfg.Launcher.RunDir}, roots)
	if err != nil || len(old) == 0 {
		return err
	}
	shown := make([]string, 0, maxOldRoots+1)
	for _, id := range old[:min(len(old), maxOldRoots)] {
		shown = append(shown, string(id))
	}
	if more := len(old) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return preflight.Warnf("%s: not all of them are trusted in boxes that run or are paused: %s; `gateway reload` adds them to running ones, a paused one "+
		"gets them when it is resumed, and any box at its next start", upstreamKey, strings.Join(shown, ", "))
}

// maxOldRoots is how many boxes CheckRoots names.
const maxOldRoots = 10

// AddedRoots returns the certificates in files as PEM, without any other blocks.
func AddedRoots(files []string) ([]byte, error) {
	var out []byte
	for _, f := range files {
		rest, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", upstreamKey, err)
		}
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if _, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
				out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
			}
		}
	}
	return out, nil
}

// NeedRoots returns an error for each file of root certificates that does not load.
func NeedRoots(cfg config.Config) error {
	var errs []error
	for key, files := range map[string][]string{upstreamKey: cfg.Proxy.UpstreamCAFiles, exportKey: cfg.Log.Export.CAFiles} {
		for _, file := range files {
			_, err := rootsWith(key, []string{file})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
