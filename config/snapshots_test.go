package config

import (
	"fmt"
	"strings"
	"testing"

	"boxgate/secrets"
)

// TestSharedSnapshotsAreChecked: a store of snapshots needs a bucket, TLS, credentials and a key of the hosts.
func TestSharedSnapshotsAreChecked(t *testing.T) {
	t.Parallel()
	known := Secrets{Sources: map[string]secrets.Source{"s3": {}, "hosts": {}}}
	whole := Snapshots{Store: "s3://snapshots/hosts/a", Endpoint: "https://s3.example.org", AccessKey: "AKIA", SecretKey: "s3", Key: "hosts"}
	for name, c := range map[string]struct {
		change func(*Snapshots)
		want   string
	}{
		"whole":           {func(*Snapshots) {}, ""},
		"without prefix":  {func(s *Snapshots) { s.Store = "s3://snapshots" }, ""},
		"AWS":             {func(s *Snapshots) { s.Endpoint = "" }, ""},
		"loopback":        {func(s *Snapshots) { s.Endpoint = "http://127.0.0.1:7070" }, ""},
		"another scheme":  {func(s *Snapshots) { s.Store = "gs://snapshots" }, "snapshots.store: "},
		"prefix of dots":  {func(s *Snapshots) { s.Store = "s3://snapshots/../a" }, "snapshots.store: "},
		"no store":        {func(s *Snapshots) { s.Store = "" }, "snapshots.store: is not set"},
		"plain":           {func(s *Snapshots) { s.Endpoint = "http://s3.example.org" }, "not encrypted"},
		"path":            {func(s *Snapshots) { s.Endpoint = "https://s3.example.org/x" }, "is not a URL"},
		"region":          {func(s *Snapshots) { s.Region = "a.b" }, "snapshots.region"},
		"no access key":   {func(s *Snapshots) { s.AccessKey = "" }, "snapshots.access_key"},
		"unknown secret":  {func(s *Snapshots) { s.SecretKey = "nope" }, `snapshots.secret_key: "nope" is not an entry of secrets`},
		"no key of hosts": {func(s *Snapshots) { s.Key = "" }, "snapshots.key: "},
		"relative CA":     {func(s *Snapshots) { s.CAFile = "ca.pem" }, "snapshots.ca_file"},
	} {
		s := whole
		c.change(&s)
		var found []string
		s.check(func(key, format string, args ...any) { found = append(found, key+": "+fmt.Sprintf(format, args...)) }, known)
		if all := strings.Join(found, "\n"); c.want == "" && all != "" || !strings.Contains(all, c.want) {
			t.Errorf("%s: %q, want %q", name, all, c.want)
		}
	}
	if bucket, prefix := whole.Bucket(); bucket != "snapshots" || prefix != "hosts/a" {
		t.Errorf("%q, %q", bucket, prefix)
	}
}
