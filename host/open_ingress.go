package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/config"
	"boxgate/host/box"
	"boxgate/host/listen"
	"boxgate/host/urls"
	"boxgate/ingress"
	"boxgate/ingress/account"
	"boxgate/internal/openid"
	"boxgate/policy/name"
)

// certificateMetrics exports the remaining validity of the certificates of public URLs. There is no host label, since its
// cardinality would be that of the URLs.
func (p *parts) certificateMetrics() error {
	gauge := func(name, help string, value func() float64) error {
		return p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	errs := []error{
		gauge("boxgate_certificates", "Certificates of public URLs that are served.", func() float64 { return float64(len(p.certificates.Expiries())) }),
		gauge("boxgate_certificate_days_left", "Days until the first of the served certificates of public URLs expires; negative once it has.",
			func() float64 { return daysLeft(p.certificates.Expiries(), time.Now()) }),
	}
	if p.acme != nil {
		counter := func(name, help string, value func() uint64) error {
			return p.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
		}
		errs = append(errs,
			gauge("boxgate_certificates_failing", "Hosts of public URLs without a certificate because the last attempt to obtain one failed.",
				func() float64 { return float64(p.acme.Failing()) }),
			counter("boxgate_certificates_obtained_total", "Certificates obtained from an issuer, renewals included.", func() uint64 { return p.acme.Counts().Obtained }),
			counter("boxgate_certificates_failed_total", "Attempts to obtain a certificate that failed with all issuers.", func() uint64 { return p.acme.Counts().Failed }),
		)
	}
	return errors.Join(errs...)
}

// daysLeft returns the number of days until the first of the certificates expires, NaN without any.
func daysLeft(expiries []time.Time, now time.Time) float64 {
	least := math.NaN()
	for _, t := range expiries {
		if days := t.Sub(now).Hours() / 24; !(days >= least) {
			least = days
		}
	}
	return least
}

// certificates supplies the certificates of public URLs.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Expiries returns the expiry times of the served certificates.
	Expiries() []time.Time
}

// openCertificates opens the source selected by ingress.tls.mode.
func (p *parts) openCertificates() error {
	err := map[string]func() error{"files": p.openFiles, "acme": p.openACME, "internal": p.openInternal}[p.cfg.Ingress.TLS.Mode]()
	if err != nil {
		return err
	}
	return p.certificateMetrics()
}

func (p *parts) openFiles() error {
	c := p.cfg.Ingress.TLS
	files, err := certs.NewFiles(c.Cert, c.Key, func(err error) {
		p.log.Error("the new certificate of the public URLs does not load; the old one stays", zap.Error(err))
	})
	if err != nil {
		return fmt.Errorf("ingress.tls: %w", err)
	}
	p.certificates = files
	return nil
}

func (p *parts) openInternal() error {
	ca, err := box.EnsureAuthority("boxgate public URLs", p.store.Authorities.InstallationCA, p.store.Authorities.SetInstallationCA)
	if err != nil {
		return err
	}
	p.urlCA = ca
	domains, err := certs.NewDomains(ca, p.urlTable.Certified, "*."+p.cfg.Ingress.Domain)
	if err != nil {
		return fmt.Errorf("ingress.domain: %w", err)
	}
	p.certificates = domains
	return nil
}

func (p *parts) openACME() error {
	c, err := acmeConfig(p.cfg)
	if err != nil {
		return err
	}
	if err := p.shareCertificates(&c); err != nil {
		return err
	}
	c.Owner, c.Order, c.Failed = p.orders.Owner, p.orders.Order, p.orders.Again
	c.Served, c.Log, c.Wait = p.urlTable.Certified, p.log.Named("certificates"), p.cfg.Ingress.Limits.HeaderTimeout
	c.HTTPS = addressOf(p.listeners.HTTPS)
	if p.listeners.Redirects() {
		c.HTTP = addressOf(p.listeners.HTTP)
	}
	p.acme, err = acme.New(c)
	p.certificates = p.acme
	return err
}

// addressOf returns the address of a listener, the zero AddrPort for nil.
func addressOf(ln net.Listener) netip.AddrPort {
	if ln == nil {
		return netip.AddrPort{}
	}
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// CheckACME checks the files that the configuration names for mode acme.
func CheckACME(cfg config.Config) error {
	_, err := acmeConfig(cfg)
	return err
}

// acmeConfig reads the files that the configuration names.
func acmeConfig(cfg config.Config) (acme.Config, error) {
	from := cfg.Ingress.TLS.ACME
	domain, err := name.Parse(cfg.Ingress.Domain)
	storage, dirErr := acme.NewFiles(config.ACMEDir(cfg))
	errs := []error{err, dirErr}
	out := acme.Config{Email: from.Email, Storage: storage, Domain: domain}
	for _, i := range from.Issuers {
		issuer, err := issuerOf(i)
		out.Issuers, errs = append(out.Issuers, issuer), append(errs, err)
	}
	if d := from.DNS01; d.Enabled() {
		key, err := secretFile(d.KeyFile, base64.StdEncoding)
		errs = append(errs, err)
		out.DNS01 = &acme.DNS01{Server: d.Server, KeyName: d.KeyName, KeyAlgorithm: d.KeyAlgorithm, Key: key, Propagation: d.Propagation}
	}
	if err := errors.Join(errs...); err != nil {
		return acme.Config{}, fmt.Errorf("ingress.tls.acme: %w", err)
	}
	return out, nil
}

func issuerOf(c config.Issuer) (acme.Issuer, error) {
	i := acme.Issuer{Directory: c.Directory, KeyID: c.EAB.KeyID}
	var err error
	if c.EAB.HMACFile != "" {
		if i.HMAC, err = secretFile(c.EAB.HMACFile, base64.RawURLEncoding); err != nil {
			return i, err
		}
	}
	if c.Roots != "" {
		data, err := os.ReadFile(c.Roots)
		if err != nil {
			return i, err
		}
		i.Roots = x509.NewCertPool()
		if !i.Roots.AppendCertsFromPEM(data) {
			return i, fmt.Errorf("%s contains no certificate in PEM", c.Roots)
		}
	}
	return i, nil
}

// secretFile reads a base64 key from a file that must be readable by its owner only.
func secretFile(path string, encoding *base64.Encoding) (name.Secret, error) {
	info, err := os.Stat(path)
	if err != nil {
		return name.Secret{}, err
	}
	if mode := info.Mode(); !mode.IsRegular() || mode.Perm()&0o077 != 0 {
		return name.Secret{}, fmt.Errorf("%s holds a secret key and must be a file that only its owner may read: run chmod 600 %s", path, path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return name.Secret{}, err
	}
	text := strings.TrimSpace(string(data))
	if encoding == base64.RawURLEncoding {
		text = strings.TrimRight(text, "=")
	}
	if key, err := encoding.DecodeString(text); err != nil || len(key) == 0 {
		return name.Secret{}, fmt.Errorf("%s does not hold a key in base64", path)
	}
	return name.NewSecret(text), nil
}

func (p *parts) openIngress(context.Context) error {
	if err := p.openCertificates(); err != nil {
		return err
	}
	validation := ""
	if p.acme != nil {
		validation = acme.Protocol
	}
	connections, requests := p.shares.URLLimits()
	limits := p.cfg.Ingress.Limits
	accounts, err := p.openAccounts()
	if err != nil {
		return err
	}
	fleet, err := p.openPeers(connections)
	if err != nil {
		return err
	}
	p.ingress, err = ingress.New(ingress.Config{
		URLs: p.urlTable, GetCertificate: p.certificates.GetCertificate, Validation: validation, Audit: p.audit, Log: p.log,
		Connections: connections, Requests: requests,
		Accounts: accounts, SessionTime: p.cfg.Ingress.SessionTime, SignOut: func(t ingress.Target) error { return urls.SignOut(p.store.URLs, p.before, t) },
		HSTS: ingress.HSTS(p.cfg.Ingress.HSTS), RequestRate: limits.Requests, FailedCredentials: limits.FailedCredentials, MaxHeaderBytes: int(limits.HeaderBytes),
		ReadHeaderTimeout: limits.HeaderTimeout, IdleTimeout: limits.IdleTimeout, BodyTimeout: limits.BodyTimeout,
		Dial: func(ctx context.Context, t ingress.Target) (net.Conn, error) {
			return p.reach.Dial(ctx, t.Box, t.Addr)
		},
		Boxes: p.visits, TokenFields: p.tokenFields(),
		Balancers: p.balancers(), Fleet: fleet, ForwardFields: p.cfg.Ingress.ForwardFields,
		DialTimeout: limits.ConnectTimeout, ResponseTimeout: limits.ResponseTimeout,
	})
	return err
}

// balancers returns the networks of load balancers that may send PROXY protocol headers. They were validated with the
// configuration; an entry that does not parse is skipped, and so not trusted.
func (p *parts) balancers() (list []netip.Prefix) {
	for _, s := range p.cfg.Ingress.ProxyProtocol {
		if at, err := netip.ParsePrefix(s); err == nil {
			list = append(list, at)
		}
	}
	return list
}

// signInURL returns the URL that the identity provider redirects visitors to, both as configured and parsed. It is empty
// if ingress.oidc is not set.
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

// openAccounts returns the sign-in configured by ingress.oidc, nil if it is not set.
func (p *parts) openAccounts() (*ingress.Accounts, error) {
	c := p.cfg.Ingress.OIDC
	if c.Issuer == "" {
		return nil, nil
	}
	redirect, at, err := p.signInURL()
	if err != nil {
		return nil, err
	}
	desk := openid.Config{Issuer: c.Issuer, ClientID: c.ClientID, Scopes: c.Scopes, Groups: c.GroupsClaim, Redirect: redirect}
	if c.ClientSecret != "" {
		desk.Secret = func(ctx context.Context) (name.Secret, error) { return p.secrets.Secret(ctx, c.ClientSecret) }
	}
	return &ingress.Accounts{Origin: "https://" + at.Host, Desk: account.NewDesk(desk, c.SessionTime, p.fleetHost())}, nil
}
