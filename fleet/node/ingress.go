package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"net/netip"
	"sync"

	"boxgate/fleet/pki"
)

// This part is about the public URLs of other hosts.

// agreements keeps the secrets with other hosts, as long as their public keys are the same.
type agreements struct {
	own *pki.Agreement

	mu    sync.Mutex
	known map[string]agreed // by host
}

type agreed struct{ public, to, from []byte }

// IngressOf returns the address of the public URLs of another member, as of the last known directory. ok is false if the host is no member,
// or other hosts do not reach its URLs.
func (n *Node) IngressOf(host string) (at netip.AddrPort, ok bool) {
	h, ok := n.hosts.get(host)
	if !ok || host == n.Identity.Host || h.Ingress == "" || len(h.Agreement) == 0 {
		return netip.AddrPort{}, false
	}
	at, err := netip.ParseAddrPort(h.Ingress)
	return at, err == nil
}

// Secrets returns the secrets for connections of visitors that this host passes on to another member, and that the member passes on to this
// host, see [pki.Agreement]. ok is false if the host is no member, as of the last known directory.
func (n *Node) Secrets(host string) (to, from []byte, ok bool) {
	h, ok := n.hosts.get(host)
	if !ok || len(h.Key) == 0 || len(h.Agreement) == 0 {
		return nil, nil, false
	}
	a := &n.agreements
	a.mu.Lock()
	defer a.mu.Unlock()
	if has, ok := a.known[host]; ok && bytes.Equal(has.public, h.Agreement) {
		return has.to, has.from, true
	}
	to, from, err := a.own.Secrets(host, h.Agreement, "visitors")
	if err != nil {
		return nil, nil, false
	}
	if len(a.known) >= maxHosts { // hosts that left
		clear(a.known)
	}
	a.known[host] = agreed{h.Agreement, to, from}
	return to, from, true
}

// Certificate returns the certificate of this host for connections with other hosts.
func (n *Node) Certificate() (*tls.Certificate, error) { return n.rotation.Certificate() }

// publish writes the address of the public URLs of this host into its record, if the directory has another one.
func (n *Node) publish(ctx context.Context) error {
	h, ok := n.Member(n.Identity.Host)
	var public []byte
	if n.Ingress != "" {
		public = n.agreements.own.Public()
	}
	if !ok || !bytes.Equal(h.Key, n.fingerprint) || h.Ingress == n.Ingress && bytes.Equal(h.Agreement, public) {
		return nil
	}
	return n.roster.SetIngress(ctx, n.Identity, n.Ingress, public, n.session.Guard)
}
