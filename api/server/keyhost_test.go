package server

import (
	"context"
	"crypto/subtle"
	"fmt"
	"io"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/trail"
	"boxgate/policy"
)

// findKey is the Finder of the memory host: testKey is the operator's.
func (h *memoryHost) findKey(key string) (api.Caller, bool) {
	if subtle.ConstantTimeCompare([]byte(key), []byte(testKey)) == 1 {
		return api.Caller{Key: api.OperatorKey, Name: api.OperatorKey, Role: api.RoleAdmin}, true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k, ok := h.keys[key]
	return k.Caller, ok && (k.ExpiresAt.IsZero() || time.Now().Before(k.ExpiresAt))
}

func (h *memoryHost) APIKeys(context.Context) (out []api.Key, err error) {
	leave, err := h.enter()
	defer leave()
	for _, k := range h.keys {
		out = append(out, k)
	}
	return out, err
}

func (h *memoryHost) CreateAPIKey(_ context.Context, req api.KeyRequest) (policy.Secret, api.Key, error) {
	leave, err := h.enter()
	defer leave()
	if err != nil {
		return policy.Secret{}, api.Key{}, err
	}
	if h.keys == nil {
		h.keys = map[string]api.Key{}
	}
	n := len(h.keys) + 1
	k := api.Key{Caller: api.Caller{Key: fmt.Sprintf("key_%d", n), Name: req.Name, Role: req.Role, Box: req.Box}, CreatedAt: time.Now()}
	if req.ExpiresIn > 0 {
		k.ExpiresAt = time.Now().Add(req.ExpiresIn)
	}
	key := fmt.Sprintf("sk-made-%d", n)
	h.keys[key] = k
	return policy.NewSecret(key), k, nil
}

func (h *memoryHost) keyOf(idOrName string) (string, api.Key) {
	for key, k := range h.keys {
		if k.Key == idOrName || k.Name == idOrName {
			return key, k
		}
	}
	return "", api.Key{}
}

func (h *memoryHost) ReplaceAPIKey(_ context.Context, key string, _ time.Duration) (policy.Secret, api.Key, error) {
	leave, err := h.enter()
	defer leave()
	old, k := h.keyOf(key)
	if old == "" || err != nil {
		return policy.Secret{}, api.Key{}, api.ErrNotFound
	}
	delete(h.keys, old)
	h.keys[old+"-next"] = k
	return policy.NewSecret(old + "-next"), k, nil
}

func (h *memoryHost) DeleteAPIKey(_ context.Context, key string) (api.Key, error) {
	leave, err := h.enter()
	defer leave()
	old, k := h.keyOf(key)
	if old == "" || err != nil {
		return api.Key{}, api.ErrNotFound
	}
	delete(h.keys, old)
	return k, nil
}

func (h *memoryHost) ReadTrail(context.Context, trail.Filter, bool, func([]byte) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unread
}

func (h *memoryHost) VerifyTrail(context.Context) (trail.Report, error) { return trail.Report{}, nil }

func (h *memoryHost) BackupStore(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "copy of the store")
	return err
}

func (h *memoryHost) VerifyStore(context.Context) (api.StoreReport, error) {
	return api.StoreReport{Documents: 3, Problems: []string{}}, nil
}

func (h *memoryHost) SearchEvents(_ context.Context, f api.EventSearch, do func(audit.Event) error) error {
	h.mu.Lock()
	found := h.events
	h.mu.Unlock()
	for _, e := range found {
		if e.Box == f.Box && !e.Time.Before(f.Since) && (f.Reason == "" || e.Reason == f.Reason) {
			if err := do(e); err != nil {
				return err
			}
		}
	}
	return nil
}
