package host

import (
	"maps"
	"sync"

	"boxgate/ingress"
	"boxgate/policy"
)

// urlTable finds the target of a public URL's host name. Safe for concurrent use.
type urlTable struct {
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

func (t *urlTable) set(host string, target ingress.Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byHost == nil {
		t.byHost = map[string]ingress.Target{}
	}
	t.byHost[host] = target
}

func (t *urlTable) remove(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byHost, host)
}

// removeBox forgets the URLs of a box.
func (t *urlTable) removeBox(id policy.BoxID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.byHost, func(_ string, target ingress.Target) bool { return target.Box == id })
}
