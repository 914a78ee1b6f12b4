package proxy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/proxy/scrub"
)

const (
	scrubKeep  = time.Hour // a secret that is no longer sent is masked for this long: a server may remember it
	scrubPast  = 64        // such secrets of one host, the latest
	scrubHosts = 256       // hosts of one box of which anything is remembered
)

// scrubMemory knows what a box's requests have told each host under a rule that asks for scrubbing. The zero value knows
// nothing. Safe for concurrent use.
type scrubMemory struct {
	mu    sync.Mutex
	hosts map[scrubHost]*scrubHistory
}

type scrubHost struct {
	name policy.Name
	port uint16
}

// scrubHistory is what one host was told.
type scrubHistory struct {
	used    map[string]time.Time // text → when it was sent last
	set     *scrub.Set           // finds all of used
	checked time.Time            // when used was last looked through for what is too old
}

// set returns what finds these texts, and those sent to the host before. It supersedes what was returned for the host
// before. If there is nothing long enough to be found it is nil, or, if there may be later, a set that finds nothing yet.
func (m *scrubMemory) set(host scrubHost, texts []string, later bool, now time.Time) *scrub.Set {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.hostLocked(host)
	fresh := now.Sub(h.checked) < scrubKeep/8
	for _, t := range texts {
		if _, known := h.used[t]; !known {
			fresh = false
		}
		h.used[t] = now
	}
	if !fresh {
		h.forget(texts, now)
		old := h.set
		if h.set = scrub.New(slices.Collect(maps.Keys(h.used))); h.set == nil && old != nil {
			h.set = &scrub.Set{}
		}
		old.Supersede(h.set)
	}
	if h.set == nil && later {
		h.set = &scrub.Set{}
	}
	return h.set
}

// hostLocked makes room for a new host by forgetting the one whose last new secret is the longest ago.
func (m *scrubMemory) hostLocked(host scrubHost) *scrubHistory {
	if h := m.hosts[host]; h != nil {
		return h
	}
	if m.hosts == nil {
		m.hosts = map[scrubHost]*scrubHistory{}
	}
	if len(m.hosts) >= scrubHosts {
		delete(m.hosts, slices.MinFunc(slices.Collect(maps.Keys(m.hosts)), func(a, b scrubHost) int {
			return m.hosts[a].checked.Compare(m.hosts[b].checked)
		}))
	}
	h := &scrubHistory{used: map[string]time.Time{}}
	m.hosts[host] = h
	return h
}

// forget drops what is too old, and the oldest of what is too much, but nothing of what is sent now.
func (h *scrubHistory) forget(current []string, now time.Time) {
	h.checked = now
	var past []string
	for t, used := range h.used {
		switch {
		case slices.Contains(current, t):
		case now.Sub(used) > scrubKeep:
			delete(h.used, t)
		default:
			past = append(past, t)
		}
	}
	slices.SortFunc(past, func(a, b string) int { return cmp.Or(h.used[b].Compare(h.used[a]), strings.Compare(a, b)) })
	for _, t := range past[min(len(past), scrubPast):] {
		delete(h.used, t)
	}
}

// scrubbed completes a ruling on a request that may go on: what must be masked in its response.
func (r *ruling) scrubbed(s *session) {
	if !r.header.Scrub || r.refused != nil {
		return
	}
	later := slices.ContainsFunc(r.header.Placeholders, func(p policy.Placeholder) bool { return p.Source != "" })
	r.scrub = s.usage.told.set(scrubHost{r.request.Name, r.request.Port}, r.secrets(), later, time.Now())
}

// secrets returns the texts that must not be seen: of what is sent with this request, and of every literal of the rule.
func (r *ruling) secrets() (texts []string) {
	for i := range r.set {
		h := &r.header.Headers[i]
		value := r.set[i].Value.Reveal()
		texts = append(texts, scrub.Texts(value)...)
		if h.Source != "" {
			texts = append(texts, scrub.Texts(strings.TrimSuffix(strings.TrimPrefix(value, h.Prefix), h.Suffix))...)
		}
	}
	for i := range r.header.Placeholders {
		texts = append(texts, scrub.Texts(r.header.Placeholders[i].Value.Reveal())...)
	}
	for i := range r.swaps {
		texts = append(texts, scrub.Texts(r.swaps[i].Value)...)
	}
	return texts
}
