package testnet

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"sync"
)

// Options configure an internet.
type Options struct {
	// Logf logs errors of the servers, such as a handshake aborted by a client. nil discards them.
	Logf func(format string, args ...any)
	// Capture counts every packet that reaches the internet namespace, of any protocol: see [Net.Packets]. It costs
	// throughput.
	Capture bool
}

// Net is an internet. Safe for concurrent use.
type Net struct {
	*servers // in the internet namespace

	gateway *NS
	packets packets

	closeOnce sync.Once
	closeErr  error
}

// New creates an internet with the predefined hosts and returns when its servers listen. ctx bounds only the setup;
// [Net.Close] ends it.
func New(ctx context.Context, o Options) (*Net, error) {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	n := &Net{}
	if err := n.build(ctx, o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Net) build(ctx context.Context, o Options) (err error) {
	if n.gateway, err = NewNS(); err != nil {
		return err
	}
	internet, err := NewNS()
	if err != nil {
		return err
	}
	if n.servers, err = newServers(internet, newZone(), &recorder{}, o.Logf); err != nil {
		return errors.Join(err, internet.close())
	}
	capture := func() error { return nil }
	if o.Capture {
		capture = func() error { return n.packets.capture(internet, o.Logf) }
	}
	connect := func() error { return connect(n.gateway, internet) }
	for _, step := range []func() error{connect, n.usualHosts, capture, n.serve, ctx.Err} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Close stops the servers, kills the processes still in the two namespaces, and removes the link and the namespaces.
// Further calls are no-ops.
func (n *Net) Close() error {
	n.closeOnce.Do(func() {
		namespaces := []*NS{n.gateway}
		if n.servers != nil {
			namespaces = append(namespaces, n.internet)
			n.closeErr = errors.Join(n.servers.Close(), n.packets.Close())
		}
		for _, ns := range namespaces {
			if ns != nil && ns.inode != 0 {
				n.closeErr = errors.Join(n.closeErr, ns.killProcesses(), removeLinks(ns), ns.close())
			}
		}
	})
	return n.closeErr
}

// Gateway returns the namespace for the gateway under test. Its default routes lead to the internet.
func (n *Net) Gateway() *NS { return n.gateway }

// Internet returns the namespace of the servers. Other clients on the internet connect from there to the gateway at
// [Net.GatewayAddrs].
func (n *Net) Internet() *NS { return n.internet }

// GatewayAddrs returns the addresses of the gateway's namespace on the internet.
func (n *Net) GatewayAddrs() (v4, v6 netip.Addr) { return gatewayV4, gatewayV6 }

// CAPEM returns the certificate of the CA that signs for the honest hosts.
func (n *Net) CAPEM() []byte { return n.honest.pem }

// Roots returns a pool with only the CA that signs for the honest hosts.
func (n *servers) Roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(n.honest.cert)
	return pool
}

// DNSServers returns the addresses of the DNS server, as host:port, reached by UDP and TCP. DNS over TLS is on port 853
// of the same hosts, under the name dns.example.com.
func (n *Net) DNSServers() []string {
	return []string{netip.AddrPortFrom(dnsV4, 53).String(), netip.AddrPortFrom(dnsV6, 53).String()}
}

// TB is the part of [testing.TB] that [ForTest] needs.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// ForTest creates an internet that lasts as long as the test.
func ForTest(tb TB, o Options) *Net {
	tb.Helper()
	n, err := New(context.Background(), o)
	if err != nil {
		tb.Fatalf("test internet: %v", err)
	}
	tb.Cleanup(func() {
		if err := n.Close(); err != nil {
			tb.Fatalf("closing the test internet: %v", err)
		}
	})
	return n
}
