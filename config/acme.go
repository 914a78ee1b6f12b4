package config

import (
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"boxgate/policy/name"
)

// ACME configures how the certificates of public URLs are obtained in mode acme.
type ACME struct {
	Email   string  `yaml:"email"`
	Issuers Issuers `yaml:"issuers"`
	DNS01   DNS01   `yaml:"dns01"`
}

// Issuers are certificate authorities in the order of preference: if one fails, the next is tried.
type Issuers []Issuer

// Issuer is a certificate authority that supports ACME.
type Issuer struct {
	Directory string `yaml:"directory"`
	Roots     string `yaml:"roots,omitempty"`
	EAB       EAB    `yaml:"eab,omitempty"`
}

// EAB binds the gateway's ACME account to an existing account at the issuer (RFC 8555, section 7.3.4).
type EAB struct {
	KeyID    string `yaml:"key_id,omitempty"`
	HMACFile string `yaml:"hmac_file,omitempty"`
}

// DNS01 is the nameserver that accepts the records of DNS-01 challenges.
type DNS01 struct {
	Server       string        `yaml:"server"`
	KeyName      string        `yaml:"key_name"`
	KeyAlgorithm string        `yaml:"key_algorithm"`
	KeyFile      string        `yaml:"key_file"`
	Propagation  time.Duration `yaml:"propagation"`
}

// Enabled reports whether one wildcard certificate is obtained for all names below the domain of the URLs.
func (d DNS01) Enabled() bool { return d.Server != "" }

// defaultACME uses Let's Encrypt.
func defaultACME() ACME {
	return ACME{
		Issuers: Issuers{{Directory: "https://acme-v02.api.letsencrypt.org/directory"}},
		DNS01:   DNS01{KeyAlgorithm: "hmac-sha256", Propagation: 20 * time.Second},
	}
}

// ACMEDir is the directory of certificates, their keys and the accounts at issuers.
func ACMEDir(cfg Config) string { return filepath.Join(cfg.StateDir, "acme") }

// The directories of the audit trail and of the decision history, and the file of observations, in the state directory.
const (
	TrailDir         = "audit"
	HistoryDir       = "history"
	ObservationsFile = "observations.db"
)

// tsigAlgorithms are the algorithms of RFC 8945, section 6, that are still secure.
var tsigAlgorithms = []string{"hmac-sha224", "hmac-sha256", "hmac-sha384", "hmac-sha512"}

// check finds values that no issuer or nameserver would accept.
func (a *ACME) check(fail func(key, format string, args ...any), domain string) {
	const key = "ingress.tls.acme"
	if local, host, ok := strings.Cut(a.Email, "@"); !ok || local == "" || host == "" || strings.ContainsAny(a.Email, " ,<>\"") {
		fail(key+".email", "%q is not an e-mail address; issuers write to it when something is wrong with a certificate", a.Email)
	}
	if n, err := name.Parse(domain); err == nil && n.IsLoopback() {
		fail("ingress.domain", "%q leads each machine to itself, so no issuer can reach it; set a domain of your own for mode acme", domain)
	}
	if len(a.Issuers) == 0 {
		fail(key+".issuers", "is empty; leave it out for Let's Encrypt")
	}
	var seen []string
	for _, i := range a.Issuers {
		i.check(fail, key+".issuers")
		if slices.Contains(seen, i.Directory) {
			fail(key+".issuers", "%q is listed twice", i.Directory)
		}
		seen = append(seen, i.Directory)
	}
	if a.DNS01.Enabled() {
		a.DNS01.check(fail, key+".dns01")
	}
}

func (i *Issuer) check(fail func(key, format string, args ...any), key string) {
	if u, err := url.Parse(i.Directory); err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		fail(key, "directory %q is not an https URL, such as https://acme-v02.api.letsencrypt.org/directory", i.Directory)
	}
	if (i.EAB.KeyID == "") != (i.EAB.HMACFile == "") {
		fail(key, "eab of %s needs both key_id and hmac_file", i.Directory)
	}
	checkFiles(fail, key, i.Roots, i.EAB.HMACFile)
}

func (d *DNS01) check(fail func(key, format string, args ...any), key string) {
	if host, port, err := net.SplitHostPort(d.Server); err != nil || host == "" || port == "" {
		fail(key+".server", "%q is not host:port, such as ns1.example.org:53", d.Server)
	}
	if _, err := name.Parse(d.KeyName); err != nil {
		fail(key+".key_name", "%q is not the name of a TSIG key", d.KeyName)
	}
	if !slices.Contains(tsigAlgorithms, d.KeyAlgorithm) {
		fail(key+".key_algorithm", "%q is not a valid value; use %s", d.KeyAlgorithm, strings.Join(tsigAlgorithms, " or "))
	}
	if d.KeyFile == "" {
		fail(key+".key_file", "is not set; updates without a signature are not sent")
	}
	if d.Propagation < 0 || d.Propagation > time.Minute {
		fail(key+".propagation", "%v is out of range; use 0s to 1m", d.Propagation)
	}
	checkFiles(fail, key, d.KeyFile)
}

func checkFiles(fail func(key, format string, args ...any), key string, paths ...string) {
	for _, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			fail(key, "%q is not an absolute path", path)
		}
	}
}
