package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/host/share"
	"boxgate/proxy"
)

// Key files that are readable by others, or invalid, are refused before they are used.
func TestACMEFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hmac, tsig := file("hmac", "c2VjcmV0X2tleQ\n", 0o600), file("tsig", "c2VjcmV0IGtleQ==\n", 0o600)
	for name, c := range map[string]struct {
		change func(*config.ACME)
		want   string
	}{
		"good":             {func(*config.ACME) {}, ""},
		"everybody's HMAC": {func(a *config.ACME) { a.Issuers[0].EAB.HMACFile = file("open", "c2VjcmV0", 0o640) }, "run chmod 600"},
		"no TSIG key":      {func(a *config.ACME) { a.DNS01.KeyFile = file("text", "not base64!", 0o600) }, "does not hold a key in base64"},
		"TSIG key is away": {func(a *config.ACME) { a.DNS01.KeyFile = filepath.Join(dir, "away") }, "no such file"},
		"no roots":         {func(a *config.ACME) { a.Issuers[0].Roots = hmac }, "contains no certificate"},
	} {
		cfg := config.Default()
		cfg.StateDir, cfg.Ingress.Domain = dir, "preview.example.org"
		cfg.Ingress.TLS.ACME.Issuers[0].EAB = config.EAB{KeyID: "kid", HMACFile: hmac}
		cfg.Ingress.TLS.ACME.DNS01 = config.DNS01{Server: "ns:53", KeyName: "key", KeyAlgorithm: "hmac-sha256", KeyFile: tsig}
		c.change(&cfg.Ingress.TLS.ACME)
		err := CheckACME(cfg)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestLimitsReachTheServerAndTheProxy(t *testing.T) {
	l := config.Limits{Connections: 1, NewConnections: 2, Interceptions: 3, Streams: 7, Requests: 8, Upstreams: 6, DNSQueries: 4, PeekTimeout: 5 * time.Second}
	var p proxy.Config
	limitProxy(l, &p)
	if p.MaxConns != 1 || p.MaxNewConns != 2 || p.MaxInterceptions != 3 || p.MaxUpstreams != 6 || p.MaxStreams != 7 || p.MaxRequests != 8 ||
		p.PeekTimeout != 5*time.Second {
		t.Errorf("proxy %+v", p)
	}
	shares, err := share.RaiseDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	if d := dnsLimits(l, shares); d.QueriesPerSecond != 4 || d.Burst != 8 || d.Sockets != shares.DNSSockets() || d.Sockets == 0 {
		t.Errorf("DNS %+v", d)
	}
}
