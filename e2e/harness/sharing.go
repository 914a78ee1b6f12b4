package harness

import (
	"os"
	"path/filepath"
	"testing"

	"boxgate/config"
	"boxgate/host/bucket/buckettest"
	"boxgate/internal/lab"
	"boxgate/secrets"
)

// storeAddress is the address of the S3 server in the network namespace of each gateway.
const storeAddress = "127.0.0.1:9000"

// NewSharing starts a gateway that shares its snapshots in a store, and can be made to fail. key is the age identity of the hosts.
func NewSharing(t *testing.T, s *buckettest.Server, key string) *World {
	t.Helper()
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{"ca.pem": string(s.CA), "s3": buckettest.SecretKey, "hosts": key} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Secrets = config.Secrets{Sources: map[string]secrets.Source{"s3": {File: filepath.Join(dir, "s3")}, "hosts": {File: filepath.Join(dir, "hosts")}}}
		c.Snapshots = config.Snapshots{
			Store: "s3://" + buckettest.Bucket + "/e2e", Endpoint: "https://" + storeAddress, AccessKey: buckettest.AccessKey, SecretKey: "s3", Key: "hosts", CAFile: filepath.Join(dir, "ca.pem"),
		}
	}})
	w.Env = append(w.Env, FaultsFile+"="+w.FaultsPath())
	ln, err := w.Net.Gateway().Listen("tcp", storeAddress)
	if err != nil {
		t.Fatal(err)
	}
	s.ListenOn(ln)
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}
