package host

import (
	"testing"
	"time"

	"boxgate/config"
	"boxgate/host/share"
	"boxgate/proxy"
)

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
