package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"boxgate/certs"
	"boxgate/certs/acme"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/config"
	"boxgate/host"
	"boxgate/preflight"
)

// needCertificate requires a working source for the certificates of the public URLs.
func needCertificate(cfg config.Config) error {
	switch cfg.Ingress.TLS.Mode {
	case "acme":
		return host.CheckACME(cfg)
	case "files":
		if _, err := certs.NewFiles(cfg.Ingress.TLS.Cert, cfg.Ingress.TLS.Key, nil); err != nil {
			return fmt.Errorf("ingress.tls: %w", err)
		}
	}
	return nil
}

// maxShown bounds the number of certificates listed individually.
const maxShown = 20

// certificateFindings reports how long the stored certificates remain valid, the earliest expiry first. Certificates of
// the internal CA are not stored: each run of the gateway issues its own.
func certificateFindings(ctx context.Context, cfg config.Config, now time.Time) []preflight.Finding {
	expiries, err := storedCertificates(ctx, cfg)
	if err != nil {
		return nil // reported by needCertificate
	}
	subjects := slices.SortedFunc(maps.Keys(expiries), func(a, b string) int { return expiries[a].Compare(expiries[b]) })
	var findings []preflight.Finding
	for _, subject := range subjects[:min(len(subjects), maxShown)] {
		findings = append(findings, certificateFinding(subject, expiries[subject], now))
	}
	if more := len(subjects) - maxShown; more > 0 {
		findings = append(findings, finding(fmt.Sprintf("%d more certificates, which expire later", more), nil))
	}
	return append(findings, reachFinding(cfg)...)
}

// storedCertificates returns the expiry of each certificate, by subject.
func storedCertificates(ctx context.Context, cfg config.Config) (map[string]time.Time, error) {
	switch cfg.Ingress.TLS.Mode {
	case "acme":
		storage, err := acme.NewFiles(config.ACMEDir(cfg))
		if err != nil {
			return nil, err
		}
		return acme.StoredExpiries(ctx, storage), nil
	case "files":
		files, err := certs.NewFiles(cfg.Ingress.TLS.Cert, cfg.Ingress.TLS.Key, nil)
		if err != nil {
			return nil, err
		}
		expiries := map[string]time.Time{}
		for _, t := range files.Expiries() {
			expiries[cfg.Ingress.TLS.Cert] = t
		}
		return expiries, nil
	}
	return nil, nil
}

// renewalDays is how many days before its expiry a certificate should have been renewed.
const renewalDays = 7

func certificateFinding(subject string, expires, now time.Time) preflight.Finding {
	days := int(expires.Sub(now).Hours() / 24)
	what := fmt.Sprintf("certificate %s, %s left", subject, cli.Count(max(days, 0), "day", "days"))
	switch {
	case !expires.After(now):
		return finding(what, preflight.Warnf("it expired on %s; if a public URL has this name, look for the reason in the log of the gateway", expires.Format(time.DateOnly)))
	case days < renewalDays:
		return finding(what, preflight.Warnf("it expires on %s and should have been replaced; look for the reason in the log of the gateway", expires.Format(time.DateOnly)))
	}
	return finding(what, nil)
}

// reachFinding lists the ports that certificate issuers must be able to reach, which cannot be checked from this host.
func reachFinding(cfg config.Config) []preflight.Finding {
	if cfg.Ingress.TLS.Mode != "acme" {
		return nil
	}
	var errs []error
	for _, l := range []struct{ key, address, port, challenge string }{
		{"ingress.https", cfg.Ingress.HTTPS, "443", "TLS-ALPN-01"}, {"ingress.http", cfg.Ingress.HTTP, "80", "HTTP-01"},
	} {
		host, port, err := net.SplitHostPort(l.address)
		ip := net.ParseIP(host)
		switch {
		case err != nil:
			errs = append(errs, preflight.Warnf("%s is off, so issuers cannot validate by %s", l.key, l.challenge))
		case ip != nil && ip.IsLoopback():
			errs = append(errs, preflight.Warnf("%s is a loopback address, so issuers cannot validate by %s", l.key, l.challenge))
		case port != l.port:
			errs = append(errs, preflight.Warnf("%s is port %s; issuers connect to port %s for %s, which must lead here", l.key, port, l.port, l.challenge))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, preflight.Warnf("whether ports 80 and 443 can be reached from the internet cannot be checked from here; one of them must be"))
	}
	return []preflight.Finding{finding("certificate issuers", errors.Join(errs...))}
}
