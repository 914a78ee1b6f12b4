package urls

import (
	"maps"
	"net"
	"sync"

	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Table maps host names of public URLs to their targets. Safe for concurrent use.
type Table struct {
	ownHost string // the gateway's own host (for sign-in), which is not a URL's; may be empty. Immutable

	mu     sync.RWMutex
	byHost map[string]ingress.Target
}

// Lookup implements [ingress.URLs].
func (t *Table) Lookup(host string) (ingress.Target, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	target, ok := t.byHost[host]
	return target, ok
}

// Has reports whether a host name belongs to a public URL, or is the gateway's own.
func (t *Table) Has(host string) bool {
	if host == t.ownHost && host != "" {
		return true
	}
	_, ok := t.Lookup(host)
	return ok
}

// NewTable returns an empty table. own is the gateway's own host, which may be empty.
func NewTable(own string) *Table { return &Table{ownHost: own} }

// OwnURLs are the public URLs that boxes may open by name: those within the gateway's own domain, over HTTPS. Custom
// domains are excluded; otherwise, creating a URL could redirect boxes' connections to any name.
type OwnURLs struct {
	domain name.Name
	port   uint16 // of HTTPS; 0: disabled
	table  *Table
	visit  func(c net.Conn, host string)
}

// NewOwnURLs returns the URLs within a domain. port is that of HTTPS, 0 if it is disabled. visit serves a connection to a
// URL.
func NewOwnURLs(domain name.Name, port uint16, table *Table, visit func(c net.Conn, host string)) *OwnURLs {
	return &OwnURLs{domain, port, table, visit}
}

// Named reports whether a name is currently that of a public URL.
func (u *OwnURLs) Named(n name.Name) bool {
	return u.port != 0 && n.IsWithin(u.domain) && u.table.Has(n.String())
}

// Served implements [proxy.URLs].
func (u *OwnURLs) Served(n name.Name, port uint16) bool { return port == u.port && u.Named(n) }

// Visit implements [proxy.URLs].
func (u *OwnURLs) Visit(c net.Conn, n name.Name) { u.visit(c, n.String()) }

// set maps hosts to a target, replacing all hosts of the same port of its box.
func (t *Table) set(hosts []string, target ingress.Target) {
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

// remove removes all hosts of a box's port. A host that was taken over by another URL stays.
func (t *Table) remove(id policy.BoxID, port uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deleteLocked(id, port)
}

func (t *Table) deleteLocked(id policy.BoxID, port uint16) {
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool {
		return target.Box == id && target.Addr.Port() == port
	})
}

// RemoveID removes the hosts of one URL.
func (t *Table) RemoveID(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.ID == id })
}

// RemoveBox removes the URLs of a box.
func (t *Table) RemoveBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Box == id })
}
