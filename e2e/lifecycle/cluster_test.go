package lifecycle

import (
	"io"
	"net/netip"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// TestReloadRemovesACluster: a reload without network.cluster cuts open connections to its services, and none is made after it, although
// the policy of the box still lists them. A reload that adds the cluster opens them.
func TestReloadRemovesACluster(t *testing.T) {
	t.Parallel()
	cluster := config.Cluster{Services: []string{"10.96.0.0/16"}, DNS: []string{"10.96.0.10"}}
	u := newUpgrading(t, func(c *config.Config) { c.Network.Cluster = cluster })
	u.StartIfStopped()
	if err := u.Net.AddHost("db.default.svc.cluster.local", "10.96.0.21"); err != nil {
		t.Fatal(err)
	}
	ln := u.ListenBeside("10.96.0.21:5432")
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			go func() { _, _ = io.Copy(c, c) }()
		}
	}()
	in := u.Intrude(u.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com"}, "allowed_cidrs": []string{policy.ClusterServices}}}))
	db := netip.MustParseAddrPort("10.96.0.21:5432")
	echoes := func() bool {
		c, err := in.Connect(db)
		if err != nil {
			return false
		}
		defer c.Close()
		_, _ = io.WriteString(c, "echo")
		_, err = io.ReadFull(c, make([]byte, len("echo")))
		return err == nil
	}
	open := in.Dial(db)
	_, _ = io.WriteString(open, "held")
	if _, err := io.ReadFull(open, make([]byte, len("held"))); err != nil {
		t.Fatal(err)
	}
	u.reconfigure(func(c *config.Config) { c.Network.Cluster = config.Cluster{} })
	u.mustReplace("reload")
	if rest, _ := harness.SendAndReadAll(open, "more"); rest != "" {
		t.Errorf("the connection outlived the cluster: %q", rest)
	}
	if echoes() {
		t.Error("a service is reached after the reload that removed its cluster")
	}
	u.reconfigure(func(c *config.Config) { c.Network.Cluster = cluster })
	u.mustReplace("reload")
	if !echoes() {
		t.Error("a service is not reached after the reload that added its cluster")
	}
}
