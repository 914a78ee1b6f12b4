package host

import (
	"maps"
	"net"
	"sync"

	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
)

// urlTable finds the target of a public URL's host names. Safe for concurrent use.
type urlTable struct {
	own string // a host of the gateway's own, which is no URL's; "" for none. It does not change

	mu     sync.RWMutex
	byHost map[string]ingress.Target
}

// Lookup implements [ingress.URLs].
func (t *urlTable) Lookup(host string) (ingress.Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byHost[host]
	return target, ok
}

// has reports whether a host name leads to a public URL, or is the gateway's own.
func (t *urlTable) has(host string) bool {
	if host == t.own && host != "" {
		return true
	}
	_, ok := t.Lookup(host)
	return ok
}

// ownURLs are the public URLs that boxes may open by name: those below the gateway's own domain, over HTTPS. Not those of
// domains of a URL's own, which nobody has to show to be theirs: whoever makes a URL could take any name from the boxes.
type ownURLs struct {
	domain  name.Name
	port    uint16 // of HTTPS; 0: it is off
	table   *urlTable
	ingress *ingress.Ingress
}

// named reports whether a name is that of a public URL now.
func (u *ownURLs) named(n name.Name) bool {
	return u.port != 0 && n.IsWithin(u.domain) && u.table.has(n.String())
}

// Served implements [proxy.URLs].
func (u *ownURLs) Served(n name.Name, port uint16) bool { return port == u.port && u.named(n) }

// Visit implements [proxy.URLs].
func (u *ownURLs) Visit(c net.Conn, n name.Name) { u.ingress.Visit(c, n.String()) }

// set makes hosts lead to a target, in place of all hosts of the same port of its box.
func (t *urlTable) set(hosts []string, target ingress.Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHost == nil {
		t.byHost = map[string]ingress.Target{}
	}
	t.deleteLocked(target.Box, target.Addr.Port())
	for _, host := range hosts {
		t.byHost[host] = target
	}
}

// remove forgets all hosts of a box's port. A host that another URL has taken over stays.
func (t *urlTable) remove(id policy.BoxID, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleteLocked(id, port)
}

func (t *urlTable) deleteLocked(id policy.BoxID, port uint16) {
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool {
		return target.Box == id && target.Addr.Port() == port
	})
}

// removeID forgets the hosts of one URL.
func (t *urlTable) removeID(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.ID == id })
}

// removeBox forgets the URLs of a box.
func (t *urlTable) removeBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Box == id })
}
