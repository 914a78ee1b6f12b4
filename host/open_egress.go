package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"boxgate/certs"
	"boxgate/dns"
	"boxgate/host/urls"
	"boxgate/policy/name"
	"boxgate/proxy"
)

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
	p.urlTable = urls.NewTable(signIn.Hostname())
	p.ownURLs = urls.NewOwn(domain, p.listeners.PortOfHTTPS(), p.urlTable, func(c net.Conn, host string) { p.ingress.Visit(c, host) })
	p.dns, err = dns.New(dns.Config{
		Boxes: p.connected, Upstreams: upstreams, SinkV4: p.addrs.SinkV4, SinkV6: p.addrs.SinkV6,
		IsURL: p.ownURLs.Named, MinGrant: p.cfg.DNS.MinGrant, Audit: p.audit, Log: p.log, Roots: p.roots, Limits: dnsLimits(p.cfg.Limits, p.shares), Memory: p.memory,
	})
	if err != nil {
		return fmt.Errorf("dns.upstreams: %w", err)
	}
	if p.domains, err = urls.NewDomains(urls.DomainsConfig{Rows: p.cfg.Ingress.Domains, Log: p.log, Store: p.store, Text: p.dns.LookupText}); err != nil {
		return err
	}
	p.orders = urls.NewOrders(p.urlTable, p.domains, p.quotas)
	if err := p.metrics.Register(p.dns); err != nil {
		return err
	}
	p.minter = &certs.Minter{Host: []name.Name{domain}}
	egress := proxy.Config{
		Boxes: p.connected, Resolver: p.dns, Leaves: p.minter, SSHKeys: p.minter, Audit: p.audit, Log: p.log, Roots: p.roots,
		Sink:     []netip.Addr{p.addrs.SinkV4, p.addrs.SinkV6},
		Own:      []netip.Addr{p.addrs.GatewayV4, p.addrs.GatewayV6},
		Host:     p.minter.Host,
		URLs:     p.ownURLs,
		DenyPage: p.cfg.Proxy.Deny == "page", IdleTimeout: p.cfg.Proxy.IdleTimeout,
		Secrets: p.secrets, Tokens: p.tokens, Memory: p.memory,
	}
	limitProxy(p.cfg.Limits, &egress)
	p.shares.Apply(&egress)
	if p.proxy, err = proxy.New(egress); err != nil {
		return err
	}
	p.secrets.SetHolders(p.proxy)
	return nil
}
