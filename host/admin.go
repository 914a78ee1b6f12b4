package host

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/internal/openid"
	"boxgate/policy/name"
	"boxgate/ui/session"
)

// openAdminTLS reads the certificate of admin.listen. It follows its files.
func (p *parts) openAdminTLS(context.Context) (err error) {
	p.adminTLS, err = adminTLS(p.cfg.Admin.TLS, func(err error) {
		p.log.Error("the new certificate of the admin API does not load; the old one stays", zap.Error(err))
	})
	return err
}

// adminTLS returns the TLS configuration of admin.listen, nil if admin.tls is not set.
func adminTLS(c config.AdminTLS, failed func(error)) (*tls.Config, error) {
	if !c.Enabled() {
		return nil, nil
	}
	files, err := certs.NewFiles(c.Cert, c.Key, failed)
	if err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	// With the protocols set here, the server does not change the configuration while another listener reads it.
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.GetCertificate, NextProtos: []string{"h2", "http/1.1"}}, nil
}

// serveAdmin serves the admin API on a listener: with TLS on the TCP listener if admin.tls is set, and never on the Unix socket.
func (h *Host) serveAdmin(run func(string, func() error), server *http.Server, ln net.Listener) {
	serve := server.Serve
	if _, tcp := ln.Addr().(*net.TCPAddr); tcp && h.parts.adminTLS != nil {
		serve = func(ln net.Listener) error { return server.ServeTLS(ln, "", "") }
	}
	h.serveKeyed(run, "admin", serve, ln)
}

// dialAdmin connects to the admin API of the process that serves it now, over TLS if that is what its TCP listener speaks. The
// listener is one of this host and shared with that process, so its certificate need not be verified.
func (p *parts) dialAdmin(ctx context.Context) (net.Conn, error) {
	c, err := p.listeners.DialAdmin(ctx)
	if err != nil {
		return nil, err
	}
	if _, tcp := c.(*net.TCPConn); !tcp || !p.cfg.Admin.TLS.Enabled() {
		return c, nil
	}
	secured := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // see above
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secured, nil
}

// CheckAdminTLS checks the files of admin.tls.
func CheckAdminTLS(cfg config.Config) error {
	_, err := adminTLS(cfg.Admin.TLS, nil)
	return err
}

// adminIssuer returns the identity provider of admin.oidc, nil if it is not set.
func (p *parts) adminIssuer() *session.Issuer {
	c := p.cfg.Admin.OIDC
	if c.Issuer == "" {
		return nil
	}
	provider := openid.Config{Issuer: c.Issuer, ClientID: c.ClientID, Scopes: c.Scopes, Groups: c.GroupsClaim, Redirect: c.RedirectURL, NeedGroups: true}
	if c.ClientSecret != "" {
		provider.Secret = func(ctx context.Context) (name.Secret, error) { return p.secrets.Secret(ctx, c.ClientSecret) }
	}
	roles := map[string]api.Role{}
	for group, role := range c.Groups {
		roles[group] = api.Role(role)
	}
	return &session.Issuer{Provider: openid.New(provider), URL: c.Issuer, Claim: c.GroupsClaim, Roles: roles}
}
