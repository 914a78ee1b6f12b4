package config

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"boxgate/policy/name"
)

// checkSections finds well-formed values that no gateway could run with.
func (c *Config) checkSections(fail func(key, format string, args ...any)) {
	if _, err := name.Parse(c.Ingress.Domain); err != nil {
		fail("ingress.domain", "%q is not a domain name: %v", c.Ingress.Domain, err)
	}
	c.Ingress.checkNames(fail)
	for _, s := range c.Ingress.ProxyProtocol {
		if p, err := netip.ParsePrefix(s); err != nil || p != p.Masked() || p.Bits() == 0 {
			fail("ingress.proxy_protocol", "%q is not a masked CIDR of load balancers such as 192.0.2.0/24", s)
		}
	}
	c.Ingress.checkForwardFields(fail)
	c.Ingress.Domains.check(fail)
	c.Ingress.HSTS.check(fail)
	if c.Ingress.TLS.Mode == "acme" {
		c.Ingress.TLS.ACME.check(fail, c.Ingress.Domain)
	}
	if t := c.Ingress.SessionTime; t < time.Minute || t > 720*time.Hour {
		fail("ingress.session_time", "%v is out of range; use 1m to 720h", t)
	}
	c.Ingress.OIDC.check(fail, c.Secrets)
	c.Proxy.Upstream.check(fail, c.Secrets)
	if c.Ingress.OIDC.Issuer != "" && c.Ingress.HTTPS == "" {
		fail("ingress.oidc", "needs ingress.https")
	}
	c.Ingress.Limits.check(fail)
	for key, path := range map[string]string{
		"admin.socket": c.Admin.Socket, "launcher.run_dir": c.Launcher.RunDir, "launcher.image_dir": c.Launcher.ImageDir,
	} {
		if path != "" && !filepath.IsAbs(path) {
			fail(key, "%q is not an absolute path", path)
		}
	}
	for key, path := range map[string]string{"state_dir": c.StateDir, "launcher.run_dir": c.Launcher.RunDir} {
		if path != "" && slices.Contains(systemDirs, filepath.Clean(path)) {
			fail(key, "%s is shared with other programs; use a directory only for the gateway", path)
		}
	}
	if c.Admin.Group != "" && c.Admin.Socket == "" {
		fail("admin.group", "needs admin.socket, which its members use")
	}
	c.Admin.Audit.check("admin.audit", false, fail)
	c.Log.History.check("log.history", true, fail)
	c.Log.Observations.check("log.observations", true, fail)
	c.Log.Export.check(fail, c.Secrets)
	if c.Admin.Socket == "" && c.Admin.Listen == "" {
		fail("admin", "neither socket nor listen is set, so the admin API would be unreachable; set one of them")
	}
	if c.Drain < 0 || c.Drain > 24*time.Hour {
		fail("drain", "%v is out of range; use 0s to 24h", c.Drain)
	}
	if c.DNS.MinGrant < 0 || c.DNS.MinGrant > 24*time.Hour {
		fail("dns.min_grant", "%v is out of range; use 0s to 24h", c.DNS.MinGrant)
	}
	if c.Launcher.IdleTimeout < 0 {
		fail("launcher.idle_timeout", "%v is negative; use 0 or more", c.Launcher.IdleTimeout)
	}
}

// systemDirs are directories of the system, which the gateway cannot have for itself.
var systemDirs = []string{
	"/", "/bin", "/boot", "/dev", "/dev/shm", "/etc", "/home", "/lib", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/run/lock",
	"/run/user", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/var", "/var/cache", "/var/lib", "/var/lock", "/var/log",
	"/var/run", "/var/tmp",
}

// check finds values that browsers would ignore, or that they would remember for too long.
func (h HSTS) check(fail func(key, format string, args ...any)) {
	if h.MaxAge < 0 || h.MaxAge > 17520*time.Hour || h.MaxAge%time.Second != 0 {
		fail("ingress.hsts.max_age", "%v is out of range; use whole seconds up to 17520h, or 0s for no Strict-Transport-Security", h.MaxAge)
	}
	if h.IncludeSubdomains && h.MaxAge == 0 {
		fail("ingress.hsts.include_subdomains", "has no effect without max_age; set ingress.hsts.max_age")
	}
}

// ImageDir is the directory of unpacked images.
func ImageDir(cfg Config) string {
	if cfg.Launcher.ImageDir != "" {
		return cfg.Launcher.ImageDir
	}
	return filepath.Join(cfg.StateDir, "images")
}
