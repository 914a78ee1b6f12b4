package node

import (
	"maps"
	"strings"
	"sync"

	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/watch"
)

// Bounds of the claims to domains that a host follows. Beyond them the last state stays, and the directory of hosts is followed all the same.
const (
	maxDomains     = 200_000
	maxDomainBytes = 64 << 20
)

// domains has the claims to domains, as of the last change that was followed.
type domains struct {
	mu    sync.RWMutex
	known map[string]directory.Claim
}

// applyDomains follows the claims. It leaves out claims that it cannot read.
func (n *Node) applyDomains(c watch.Change) {
	prefix := fleet.KeysOf(n.Fleet).Domains()
	n.domains.mu.Lock()
	defer n.domains.mu.Unlock()
	for _, e := range c.Set {
		domain := strings.TrimPrefix(e.Key, prefix)
		claim, err := fleet.Decode[directory.Domain](e.Value)
		if err != nil {
			n.Log.Warn("the claim to a domain is not readable", zap.String("domain", domain), zap.Error(err))
			delete(n.domains.known, domain)
			continue
		}
		n.domains.known[domain] = directory.Claim{Domain: claim, Revision: e.Revision}
	}
	for _, key := range c.Deleted {
		delete(n.domains.known, strings.TrimPrefix(key, prefix))
	}
}

// DomainOwner returns the host that has a domain in use, as of the last known claims; it may have left.
func (n *Node) DomainOwner(domain string) (host string, ok bool) {
	n.domains.mu.RLock()
	defer n.domains.mu.RUnlock()
	claim, ok := n.domains.known[domain]
	return claim.Host, ok && claim.Freed.IsZero()
}

// Claims returns the claims to domains by the domains. known is false before the first listing.
func (n *Node) Claims() (claims map[string]directory.Claim, known bool) {
	n.domains.mu.RLock()
	defer n.domains.mu.RUnlock()
	return maps.Clone(n.domains.known), n.claims.State().Revision > 0
}

// IsMember reports whether a host is a member, as of the last known directory.
func (n *Node) IsMember(host string) bool {
	_, ok := n.hosts.get(host)
	return ok
}
