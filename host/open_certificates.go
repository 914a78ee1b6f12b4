package host

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/config"
	"boxgate/host/box"
	"boxgate/policy/name"
)

// certificates are those of the public URLs.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Expiries returns when each of those that are served expires.
	Expiries() []time.Time
}

// openCertificates opens the source that ingress.tls.mode asks for.
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
	ca, err := box.EnsureAuthority("boxgate public URLs", p.store.InstallationCA, p.store.SetInstallationCA)
	if err != nil {
		return err
	}
	p.urlCA = ca
	domains, err := certs.NewDomains(ca, p.urlTable.Has, "*."+p.cfg.Ingress.Domain)
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
	c.Owner, c.Order, c.Failed = p.orders.Owner, p.orders.Order, p.orders.Again
	c.Served, c.Log, c.Wait = p.urlTable.Has, p.log.Named("certificates"), p.cfg.Ingress.Limits.HeaderTimeout
	c.HTTPS = addressOf(p.listeners.HTTPS)
	if p.listeners.Redirects() {
		c.HTTP = addressOf(p.listeners.HTTP)
	}
	p.acme, err = acme.New(c)
	p.certificates = p.acme
	return err
}

// addressOf is where a listener listens; zero for none.
func addressOf(ln net.Listener) netip.AddrPort {
	if ln == nil {
		return netip.AddrPort{}
	}
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// CheckACME finds what is missing for mode acme among the files that the configuration names.
func CheckACME(cfg config.Config) error {
	_, err := acmeConfig(cfg)
	return err
}

// acmeConfig reads what the configuration names.
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

// secretFile reads a key in base64 from a file that only its owner may read.
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
