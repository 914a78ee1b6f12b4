package host

import (
	"boxgate/host/listen"

	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"boxgate/certs/acme"
	"boxgate/config"
	"boxgate/host/urls"
	"boxgate/ingress"
	"boxgate/ingress/account"
	"boxgate/policy/name"
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
	accounts, err := p.openAccounts()
	if err != nil {
		return err
	}
	p.ingress, err = ingress.New(ingress.Config{
		URLs: p.urlTable, GetCertificate: p.certificates.GetCertificate, Validation: validation, Audit: p.audit, Log: p.log,
		Connections: connections, Requests: requests,
		Accounts: accounts, SessionTime: p.cfg.Ingress.SessionTime, SignOut: func(t ingress.Target) error { return urls.SignOut(p.store, p.before, t) },
		HSTS: ingress.HSTS(p.cfg.Ingress.HSTS), RequestRate: limits.Requests, FailedCredentials: limits.FailedCredentials, MaxHeaderBytes: int(limits.HeaderBytes),
		ReadHeaderTimeout: limits.HeaderTimeout, IdleTimeout: limits.IdleTimeout, BodyTimeout: limits.BodyTimeout,
		Dial: func(ctx context.Context, t ingress.Target) (net.Conn, error) {
			return p.reach.Dial(ctx, t.Box, t.Addr)
		},
		Boxes:     p.visits,
		Balancers: p.balancers(), ForwardFields: p.cfg.Ingress.ForwardFields,
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

// signInURL returns the address at which visitors come back from the identity provider, as configured and parsed; empty if ingress.oidc
// is not set.
func (p *parts) signInURL() (redirect string, at *url.URL, err error) {
	c := p.cfg.Ingress.OIDC
	if c.Issuer == "" {
		return "", &url.URL{}, nil
	}
	redirect = c.RedirectURL
	if redirect == "" {
		if p.listeners.HTTPS == nil {
			return "", nil, errors.New("ingress.oidc: needs ingress.https")
		}
		redirect = "https://auth." + p.cfg.Ingress.Domain
		if port := listen.PortOf(p.listeners.HTTPS); port != 443 {
			redirect += ":" + strconv.Itoa(int(port))
		}
		redirect += config.OIDCReturnPath
	}
	if at, err = url.Parse(redirect); err != nil {
		return "", nil, fmt.Errorf("ingress.oidc.redirect_url: %w", err)
	}
	return redirect, at, nil
}

// openAccounts returns what ingress.oidc asks for; nil if it is not set.
func (p *parts) openAccounts() (*ingress.Accounts, error) {
	c := p.cfg.Ingress.OIDC
	if c.Issuer == "" {
		return nil, nil
	}
	redirect, at, err := p.signInURL()
	if err != nil {
		return nil, err
	}
	desk := account.Config{Issuer: c.Issuer, ClientID: c.ClientID, Scopes: c.Scopes, Groups: c.GroupsClaim, Redirect: redirect}
	if c.ClientSecret != "" {
		desk.Secret = func(ctx context.Context) (name.Secret, error) { return p.secrets.Secret(ctx, c.ClientSecret) }
	}
	return &ingress.Accounts{Origin: "https://" + at.Host, Desk: account.NewDesk(desk, c.SessionTime)}, nil
}
