package host

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"go.uber.org/zap"

	"boxgate/certs"
	"boxgate/ingress"
)

func (p *parts) openIngress(context.Context) error {
	getCertificate, err := p.urlCertificates()
	if err != nil {
		return err
	}
	connections, requests := p.shares.Visits()
	limits := p.cfg.Ingress.Limits
	p.ingress, err = ingress.New(ingress.Config{
		URLs: p.urlTable, GetCertificate: getCertificate, Audit: p.audit, Log: p.log,
		Connections: connections, Requests: requests,
		HSTS: ingress.HSTS(p.cfg.Ingress.HSTS), RequestRate: limits.Requests, FailedCredentials: limits.FailedCredentials, MaxHeaderBytes: int(limits.HeaderBytes),
		ReadHeaderTimeout: limits.HeaderTimeout, IdleTimeout: limits.IdleTimeout, BodyTimeout: limits.BodyTimeout,
		Dial: func(ctx context.Context, t ingress.Target) (net.Conn, error) {
			return p.reach.Dial(ctx, t.Box, t.Addr)
		},
		DialTimeout: limits.ConnectTimeout, ResponseTimeout: limits.ResponseTimeout,
	})
	return err
}

// urlCertificates returns the certificate source that ingress.tls.mode asks for.
func (p *parts) urlCertificates() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := p.cfg.Ingress
	if c.TLS.Mode == "files" {
		files, err := certs.NewFiles(c.TLS.Cert, c.TLS.Key, func(err error) {
			p.log.Error("the new certificate of the public URLs does not load; the old one stays", zap.Error(err))
		})
		if err != nil {
			return nil, fmt.Errorf("ingress.tls: %w", err)
		}
		return files.GetCertificate, nil
	}
	ca, err := ensureAuthority("boxgate public URLs", p.store.InstallationCA, p.store.SetInstallationCA)
	if err != nil {
		return nil, err
	}
	p.urlCA = ca
	issued, err := certs.NewDomains(ca, p.urlTable.has, "*."+c.Domain)
	if err != nil {
		return nil, fmt.Errorf("ingress.domain: %w", err)
	}
	return issued.GetCertificate, nil
}
