package config

import (
	"net"
	"strings"
)

// AdminTLS are the files of the certificate of admin.listen.
type AdminTLS struct {
	Cert string `yaml:"cert"` // PEM, with intermediate certificates; empty: plain HTTP
	Key  string `yaml:"key"`  // PEM
}

// Enabled reports whether admin.listen speaks TLS.
func (t AdminTLS) Enabled() bool { return t.Cert != "" }

// URL returns the address of the TCP listener of the admin API as a URL; "" if there is none.
func (a Admin) URL() string {
	switch {
	case a.Listen == "":
		return ""
	case a.TLS.Enabled():
		return "https://" + a.Listen
	}
	return "http://" + a.Listen
}

// IsPrivate reports whether only this host can read what is sent over the TCP listener: it is on loopback, or has TLS.
func (a Admin) IsPrivate() bool {
	host, _, err := net.SplitHostPort(a.Listen)
	return a.TLS.Enabled() || err == nil && isLoopback(host)
}

// checkTLS finds files that are of no use.
func (a Admin) checkTLS(fail func(key, format string, args ...any)) {
	switch {
	case (a.TLS.Cert == "") != (a.TLS.Key == ""):
		fail("admin.tls", "has one of cert and key; set both, or neither")
	case a.TLS.Enabled() && a.Listen == "":
		fail("admin.tls", "has no effect without admin.listen; set that, or remove admin.tls")
	}
	for _, host := range a.Hosts {
		if strings.ContainsAny(host, ":/ ") && net.ParseIP(host) == nil {
			fail("admin.hosts", "%q is not a host name without port and scheme", host)
		}
	}
}
