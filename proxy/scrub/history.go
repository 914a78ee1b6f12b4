package scrub

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/policy/name"
)

const (
	keepFor  = time.Hour // how long a secret no longer sent is still masked: a server may remember it
	maxPast  = 64        // such secrets per host, the most recent
	maxHosts = 256       // hosts remembered per box
)

// History records the secrets that a box's requests have sent to each host under a rule with scrubbing. The zero value is
// empty. Safe for concurrent use.
type History struct {
	mu    sync.Mutex
	hosts map[name.Name]*hostHistory // whatever the port: a server may reflect on one port a secret received on another
}

// hostHistory records the secrets sent to one host.
type hostHistory struct {
	used    map[string]time.Time // text → when it was last sent
	set     *Set                 // finds all of used
	checked time.Time            // when used was last checked for expired texts
}

// Set returns the set for these texts and those sent to the host before. It supersedes the set last returned for the host.
// If no text is long enough to be searched for, it returns nil, or an empty set if later reports that there may be one
// later.
func (m *History) Set(host name.Name, texts []string, later bool, now time.Time) *Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hostLocked(host)
	fresh := now.Sub(h.checked) < keepFor/8
	for _, t := range texts {
		if _, known := h.used[t]; !known {
			fresh = false
		}
		h.used[t] = now
	}
	if !fresh {
		h.forget(texts, now)
		old := h.set
		if h.set = New(slices.Collect(maps.Keys(h.used))); h.set == nil && old != nil {
			h.set = &Set{}
		}
		old.Supersede(h.set)
	}
	if h.set == nil && later {
		h.set = &Set{}
	}
	return h.set
}

// Texts returns the secrets that were sent to all hosts.
func (m *History) Texts() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.hosts {
		all = slices.AppendSeq(all, maps.Keys(h.used))
	}
	return all
}

// hostLocked makes room for a new host by forgetting the one whose newest secret is the oldest.
func (m *History) hostLocked(host name.Name) *hostHistory {
	if h := m.hosts[host]; h != nil {
		return h
	}
	if m.hosts == nil {
		m.hosts = map[name.Name]*hostHistory{}
	}
	if len(m.hosts) >= maxHosts {
		delete(m.hosts, slices.MinFunc(slices.Collect(maps.Keys(m.hosts)), func(a, b name.Name) int {
			return m.hosts[a].checked.Compare(m.hosts[b].checked)
		}))
	}
	h := &hostHistory{used: map[string]time.Time{}}
	m.hosts[host] = h
	return h
}

// forget drops expired texts, and the oldest beyond the limit, but never those in current.
func (h *hostHistory) forget(current []string, now time.Time) {
	h.checked = now
	var past []string
	for t, used := range h.used {
		switch {
		case slices.Contains(current, t):
		case now.Sub(used) > keepFor:
			delete(h.used, t)
		default:
			past = append(past, t)
		}
	}
	slices.SortFunc(past, func(a, b string) int { return cmp.Or(h.used[b].Compare(h.used[a]), strings.Compare(a, b)) })
	for _, t := range past[min(len(past), maxPast):] {
		delete(h.used, t)
	}
}
