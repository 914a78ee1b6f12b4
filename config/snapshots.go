package config

import (
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// Snapshots configures a store of snapshots that several hosts share: a bucket of an S3 server.
type Snapshots struct {
	Store     string `yaml:"store"`      // s3://bucket/prefix; empty: snapshots stay on this host
	Endpoint  string `yaml:"endpoint"`   // URL of the server; empty: that of AWS in region
	Region    string `yaml:"region"`     // empty: us-east-1
	AccessKey string `yaml:"access_key"` // ID of the access key
	SecretKey string `yaml:"secret_key"` // name of the secret with its secret key
	Key       string `yaml:"key"`        // name of the secret with the age identity of all hosts
	CAFile    string `yaml:"ca_file"`    // PEM roots of the server's certificate; empty: the system's
}

var (
	bucketText = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixText = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`)
	regionText = regexp.MustCompile(`^[a-z0-9-]{0,63}$`)
)

// Enabled reports whether snapshots are in a store of several hosts.
func (s Snapshots) Enabled() bool { return s.Store != "" }

// Bucket returns the bucket and the prefix of objects in it.
func (s Snapshots) Bucket() (bucket, prefix string) {
	bucket, prefix, _ = strings.Cut(strings.TrimPrefix(s.Store, "s3://"), "/")
	return bucket, strings.TrimSuffix(prefix, "/")
}

// Server returns the host and port of the server, and whether the connection has no TLS.
func (s Snapshots) Server() (address string, plain bool) {
	if s.Endpoint == "" {
		region := s.Region
		if region == "" {
			region = "us-east-1"
		}
		return "s3." + region + ".amazonaws.com", false
	}
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return "", false // refused by check
	}
	return u.Host, u.Scheme == "http"
}

// check finds settings that no store can have.
func (s Snapshots) check(fail func(key, format string, args ...any), secrets Secrets) {
	if !s.Enabled() {
		if s != (Snapshots{}) {
			fail("snapshots.store", "is not set, so the other keys of snapshots have no effect; set it, or remove snapshots")
		}
		return
	}
	bucket, prefix := s.Bucket()
	if !strings.HasPrefix(s.Store, "s3://") || !bucketText.MatchString(bucket) || net.ParseIP(bucket) != nil || prefix != "" && !prefixText.MatchString(prefix) || len(prefix) > 256 {
		fail("snapshots.store", "%q is not a bucket and a prefix such as s3://bucket/prefix", s.Store)
	}
	if !regionText.MatchString(s.Region) {
		fail("snapshots.region", "%q is not a region such as us-east-1", s.Region)
	}
	if s.Endpoint != "" {
		s.checkEndpoint(fail)
	}
	if s.AccessKey == "" || strings.ContainsAny(s.AccessKey, " \t\r\n/,") {
		fail("snapshots.access_key", "%q is not the ID of an access key", s.AccessKey)
	}
	for key, name := range map[string]string{"snapshots.secret_key": s.SecretKey, "snapshots.key": s.Key} {
		if _, known := secrets.Sources[name]; !known {
			fail(key, "%q is not an entry of secrets; add it there, such as {file: /etc/boxgate/%s}", name, strings.TrimPrefix(key, "snapshots."))
		}
	}
	if s.CAFile != "" && !filepath.IsAbs(s.CAFile) {
		fail("snapshots.ca_file", "%q is not an absolute path", s.CAFile)
	}
}

// checkEndpoint requires TLS, except on this machine: otherwise everybody on the way could read the names and times of snapshots, and remove
// them.
func (s Snapshots) checkEndpoint(fail func(key, format string, args ...any)) {
	const key = "snapshots.endpoint"
	u, err := url.Parse(s.Endpoint)
	switch {
	case err != nil || *u != url.URL{Scheme: u.Scheme, Host: u.Host} || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		fail(key, "%q is not a URL such as https://s3.example.org", s.Endpoint)
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		fail(key, "%q is not encrypted; use https, or http on a loopback address", s.Endpoint)
	}
}
