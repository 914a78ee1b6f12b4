package exchange

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Revocations records the revocations of secrets. The zero value is empty. Safe for concurrent use.
type Revocations struct {
	count atomic.Uint64 // of all revocations

	mu   sync.Mutex
	last map[string]uint64 // secret → count after its latest revocation
	used map[string]bool   // secrets that were sent with a request
}

// Revoke records a revocation. Requests in progress that were sent with the secret are cut when their connections are
// rechecked.
func (v *Revocations) Revoke(secret string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil {
		v.last = map[string]uint64{}
	}
	v.last[secret] = v.count.Load() + 1
	v.count.Add(1)
}

// Used reports whether a secret was sent with a request.
func (v *Revocations) Used(secret string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used[secret]
}

// markUsed records that secrets are sent.
func (v *Revocations) markUsed(secrets []string) {
	if len(secrets) == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range secrets {
		if !v.used[s] {
			if v.used == nil {
				v.used = map[string]bool{}
			}
			v.used[s] = true
		}
	}
}

// since reports whether one of the secrets was revoked after the count was then.
func (v *Revocations) since(then uint64, secrets []string) bool {
	if len(secrets) == 0 || v.count.Load() == then {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.ContainsFunc(secrets, func(s string) bool { return v.last[s] > then })
}

// Revoked reports whether a secret of the request was revoked after the request was judged.
func (r *Decision) Revoked(s *Session) bool { return s.Core.Revoked.since(r.revokedBefore, r.sources) }

// sourcesOf returns the secrets of the configuration that a decision sends. The list must not be modified.
func (r *Decision) sourcesOf() []string {
	does := r.header.OnRequests()
	names := slices.Clip(does.Sources)
	if len(r.Swaps) > 0 {
		names = append(names, does.Swapped...)
	}
	if i := r.header.OnConnections().Identity; i != nil {
		names = append(names, i.Sources()...)
	}
	return names
}
