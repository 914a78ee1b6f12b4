package host

import (
	"context"
	"net"
	"net/netip"

	"boxgate/certs/acme"
	"boxgate/ingress"
)

func (p *parts) openIngress(context.Context) error {
	if err := p.openCertificates(); err != nil {
		return err
	}
	validation := ""
	if p.acme != nil {
		validation = acme.Protocol
	}
	connections, requests := p.shares.Visits()
	limits := p.cfg.Ingress.Limits
	var err error
	p.ingress, err = ingress.New(ingress.Config{
		URLs: p.urlTable, GetCertificate: p.certificates.GetCertificate, Validation: validation, Audit: p.audit, Log: p.log,
		Connections: connections, Requests: requests,
		SessionTime: p.cfg.Ingress.SessionTime, SignOut: func(t ingress.Target) error { return signOut(p.store, t) },
		HSTS: ingress.HSTS(p.cfg.Ingress.HSTS), RequestRate: limits.Requests, FailedCredentials: limits.FailedCredentials, MaxHeaderBytes: int(limits.HeaderBytes),
		ReadHeaderTimeout: limits.HeaderTimeout, IdleTimeout: limits.IdleTimeout, BodyTimeout: limits.BodyTimeout,
		Dial: func(ctx context.Context, t ingress.Target) (net.Conn, error) {
			return p.reach.Dial(ctx, t.Box, t.Addr)
		},
		Used:        p.boxes.touch,
		Balancers:   p.balancers(),
		DialTimeout: limits.ConnectTimeout, ResponseTimeout: limits.ResponseTimeout,
	})
	return err
}

// balancers are the load balancers before the gateway. That they can be parsed was checked with the configuration; one that
// cannot be is trusted with nothing.
func (p *parts) balancers() (list []netip.Prefix) {
	for _, s := range p.cfg.Ingress.ProxyProtocol {
		if at, err := netip.ParsePrefix(s); err == nil {
			list = append(list, at)
		}
	}
	return list
}
