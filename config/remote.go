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
