package config

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
)

// Fleet makes this host a member of a fleet, whose hosts agree by an etcd cluster of the operator.
type Fleet struct {
	Name      string   `yaml:"name"`      // empty: no fleet
	Endpoints []string `yaml:"endpoints"` // URLs of etcd
	TLS       FleetTLS `yaml:"tls"`
	Advertise string   `yaml:"advertise"` // IP address and port of this host for the other hosts, on which it listens; empty: none
	Domain    string   `yaml:"domain"`    // of the public URLs of all hosts
	Placement string   `yaml:"placement"` // of new boxes whose client does not choose: [PlacementHere] or [PlacementSpread]
	Ingress   string   `yaml:"ingress"`   // address and port at which the other hosts reach ingress.https; empty: public URLs are not passed on
}

// FleetTLS are the files for connections to etcd.
type FleetTLS struct {
	CAFile   string `yaml:"ca_file"`   // PEM roots of etcd's certificate; empty: the system's
	CertFile string `yaml:"cert_file"` // PEM certificate of this client of etcd
	KeyFile  string `yaml:"key_file"`
}

// The placements of new boxes.
const (
	PlacementHere   = "here"   // on the host that is asked
	PlacementSpread = "spread" // on the emptier of two hosts of the fleet
)

// Spreads reports whether new boxes are spread over the hosts of the fleet.
func (f Fleet) Spreads() bool { return f.Enabled() && f.Placement == PlacementSpread }

// MaxFleetEndpoints is the maximum number of endpoints of etcd.
const MaxFleetEndpoints = 16

// fleetName matches names of fleets: they are part of keys in etcd.
var fleetName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// Enabled reports whether this host is configured for a fleet.
func (f Fleet) Enabled() bool { return f.Name != "" }

// check finds settings that no host of a fleet can have.
func (f Fleet) check(fail func(key, format string, args ...any)) {
	if !f.Enabled() {
		if len(f.Endpoints) > 0 || f.TLS != (FleetTLS{}) || f.Advertise != "" || f.Domain != "" || f.Ingress != "" || f.Placement == PlacementSpread {
			fail("fleet.name", "is not set, so the other keys of fleet have no effect; set it, or remove fleet")
		}
		return
	}
	if !fleetName.MatchString(f.Name) {
		fail("fleet.name", "%q is not a name of a fleet; use 1 to 32 lower-case letters, digits and inner hyphens", f.Name)
	}
	if len(f.Endpoints) == 0 || len(f.Endpoints) > MaxFleetEndpoints {
		fail("fleet.endpoints", "has %d URLs of etcd; use 1 to %d, such as [https://etcd-1.example.org:2379]", len(f.Endpoints), MaxFleetEndpoints)
	}
	for _, e := range f.Endpoints {
		f.checkEndpoint(e, fail)
	}
	f.TLS.check(fail)
	if at, err := netip.ParseAddrPort(f.Ingress); f.Ingress != "" && (err != nil || at.Port() == 0 || at.Addr().IsUnspecified() || at.Addr().IsMulticast() || at.Addr().Zone() != "") {
		fail("fleet.ingress", "%q is not an address and port of this host, such as 192.0.2.7:443 or [2001:db8::7]:443", f.Ingress)
	}
	if at, err := netip.ParseAddrPort(f.Advertise); f.Advertise != "" && (err != nil || at.Port() == 0 || at.Addr().IsUnspecified() || at.Addr().IsMulticast() || at.Addr().Zone() != "") {
		fail("fleet.advertise", "%q is not an address of this host with a port, such as 10.0.0.5:8700 or [fd00::5]:8700", f.Advertise)
	}
	if f.Placement != "" && f.Placement != PlacementHere && f.Placement != PlacementSpread {
		fail("fleet.placement", "%q is not a placement of boxes; use %s or %s", f.Placement, PlacementHere, PlacementSpread)
	}
	// Without routing of URLs this has no effect.
	if f.Domain != "" {
		fail("fleet.domain", "is not supported by this version; remove it")
	}
}

// checkEndpoint requires TLS, except on this machine: whoever reads or changes the connection to etcd is all hosts.
func (f Fleet) checkEndpoint(endpoint string, fail func(key, format string, args ...any)) {
	const key = "fleet.endpoints"
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		fail(key, "%q is not a URL such as https://etcd-1.example.org:2379", endpoint)
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path) && *u == url.URL{Scheme: "unix", Path: u.Path}:
	case *u != url.URL{Scheme: u.Scheme, Host: u.Host} || u.Hostname() == "" || u.Port() == "" || u.Scheme != "https" && u.Scheme != "http":
		fail(key, "%q is not a URL such as https://etcd-1.example.org:2379", endpoint)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		fail(key, "%q is not encrypted; use https, or http on a loopback address", endpoint)
	case u.Scheme == "http" && f.TLS != (FleetTLS{}):
		fail("fleet.tls", "has no effect on %s; use https, or remove fleet.tls", endpoint)
	}
}

// check requires whole paths, and both files of a certificate.
func (t FleetTLS) check(fail func(key, format string, args ...any)) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		fail("fleet.tls", "has one of cert_file and key_file; set both, or neither")
	}
	for key, path := range map[string]string{"ca_file": t.CAFile, "cert_file": t.CertFile, "key_file": t.KeyFile} {
		if path != "" && !filepath.IsAbs(path) {
			fail("fleet.tls."+key, "%q is not an absolute path", path)
		}
	}
}
