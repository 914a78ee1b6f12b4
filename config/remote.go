package config

// Remote configures the listener for boxes that run elsewhere.
type Remote struct {
	Listen string    `yaml:"listen"` // empty: no remote boxes
	TLS    RemoteTLS `yaml:"tls"`
}

// RemoteTLS are the files of the certificate of remote.listen.
type RemoteTLS struct {
	Cert string `yaml:"cert"` // PEM, with intermediate certificates
	Key  string `yaml:"key"`  // PEM
}

// check requires a certificate for the listener, on any address: without TLS, everybody on the way could read the tokens.
func (r Remote) check(fail func(key, format string, args ...any)) {
	whole := r.TLS.Cert != "" && r.TLS.Key != ""
	switch {
	case (r.TLS.Cert == "") != (r.TLS.Key == ""):
		fail("remote.tls", "has one of cert and key; set both")
	case r.Listen != "" && !whole:
		fail("remote.tls", "is not set; remote.listen needs the files cert and key of a certificate for the name that the clients connect to")
	case r.Listen == "" && whole:
		fail("remote.tls", "has no effect without remote.listen; set that, or remove remote.tls")
	}
}

// SSH configures the listener for clients of SSH.
type SSH struct {
	Listen string `yaml:"listen"` // empty: no SSH
}

// E2B configures the dialect of E2B's SDK: its control API and the API that its sandboxes serve (docs/e2b.md).
type E2B struct {
	// Enabled serves both, on the listeners of the admin API and at names below ingress.domain.
	Enabled bool `yaml:"enabled"`
	// PublicTraffic opens the ports of a new box to anyone if its creator does not choose. false: they need the traffic token.
	PublicTraffic bool `yaml:"public_traffic"`
}

// check requires that the ports of boxes can be open to anyone before they are by default.
func (e E2B) check(i Ingress, fail func(key, format string, args ...any)) {
	switch {
	case e.PublicTraffic && !e.Enabled:
		fail("e2b.public_traffic", "has no effect without e2b.enabled; set that, or remove e2b.public_traffic")
	case e.PublicTraffic && !i.PublicPorts:
		fail("e2b.public_traffic", "needs ingress.public_ports: true, which permits ports without a token")
	}
}

// E2BLabel is the label below a domain of public URLs at which the control API of E2B's dialect is served.
const E2BLabel = "api"

// APIHost returns the host name below a domain of public URLs at which the control API of E2B's dialect is served.
func (e E2B) APIHost(domain string) string { return E2BLabel + "." + domain }
