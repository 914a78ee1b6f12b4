package urls

import (
	"maps"
	"net"
	"sync"

	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Table finds the target of a public URL's host names. Safe for concurrent use.
type Table struct {
	own string // a host of the gateway's own, which is no URL's; "" for none. It does not change

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

// Has reports whether a host name leads to a public URL, or is the gateway's own.
func (t *Table) Has(host string) bool {
	if host == t.own && host != "" {
		return true
	}
	_, ok := t.Lookup(host)
	return ok
}

// NewTable returns an empty table. own is a host of the gateway's own, which is no URL's; "" for none.
func NewTable(own string) *Table { return &Table{own: own} }

// OwnURLs are the public URLs that boxes may open by name: those below the gateway's own domain, over HTTPS. Not those of
// domains of a URL's own, which nobody has to show to be theirs: whoever makes a URL could take any name from the boxes.
type OwnURLs struct {
	domain name.Name
	port   uint16 // of HTTPS; 0: it is off
	table  *Table
	visit  func(c net.Conn, host string)
}

// NewOwnURLs returns the URLs below a domain. port is that of HTTPS, 0 if it is off; visit serves a connection to a URL.
func NewOwnURLs(domain name.Name, port uint16, table *Table, visit func(c net.Conn, host string)) *OwnURLs {
	return &OwnURLs{domain, port, table, visit}
}

// Named reports whether a name is that of a public URL now.
func (u *OwnURLs) Named(n name.Name) bool {
	return u.port != 0 && n.IsWithin(u.domain) && u.table.Has(n.String())
}

// Served implements [proxy.URLs].
func (u *OwnURLs) Served(n name.Name, port uint16) bool { return port == u.port && u.Named(n) }

// Visit implements [proxy.URLs].
func (u *OwnURLs) Visit(c net.Conn, n name.Name) { u.visit(c, n.String()) }

// set makes hosts lead to a target, in place of all hosts of the same port of its box.
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

// remove forgets all hosts of a box's port. A host that another URL has taken over stays.
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

// RemoveID forgets the hosts of one URL.
func (t *Table) RemoveID(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.ID == id })
}

// RemoveBox forgets the URLs of a box.
func (t *Table) RemoveBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Box == id })
}
