package apitest

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/audit/trail"
	"boxgate/llm"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/quota"
)

// FindKey implements [boxgate/api/access.Finder]. Key is the operator's.
func (h *Host) FindKey(key string) (api.Caller, bool) {
	if subtle.ConstantTimeCompare([]byte(key), []byte(Key)) == 1 {
		return api.Caller{Key: api.OperatorKey, Name: api.OperatorKey, Role: api.RoleAdmin}, true
	}
	h.Mu.Lock()
	defer h.Mu.Unlock()
	k, ok := h.Keys[key]
	return k.Caller, ok && (k.ExpiresAt.IsZero() || time.Now().Before(k.ExpiresAt))
}

// FindHash is FindKey for the SHA-256 of a key.
func (h *Host) FindHash(hash [sha256.Size]byte) (api.Caller, bool) {
	h.Mu.Lock()
	all := append(slices.Collect(maps.Keys(h.Keys)), Key)
	h.Mu.Unlock()
	for _, key := range all {
		if sha256.Sum256([]byte(key)) == hash {
			return h.FindKey(key)
		}
	}
	return api.Caller{}, false
}

// APIKeys implements the Host of [boxgate/api/keys].
func (h *Host) APIKeys(context.Context) (out []api.Key, err error) {
	leave, err := h.beginCall()
	defer leave()
	for _, k := range h.Keys {
		out = append(out, k)
	}
	return out, err
}

// CreateAPIKey implements the Host of [boxgate/api/keys].
func (h *Host) CreateAPIKey(_ context.Context, req api.KeyRequest) (name.Secret, api.Key, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return name.Secret{}, api.Key{}, err
	}
	if h.Keys == nil {
		h.Keys = map[string]api.Key{}
	}
	n := len(h.Keys) + 1
	k := api.Key{Caller: api.Caller{Key: fmt.Sprintf("key_%d", n), Name: req.Name, Role: req.Role, Box: req.Box}, CreatedAt: time.Now(), Quotas: req.Quotas, Model: req.Model}
	if req.ExpiresIn > 0 {
		k.ExpiresAt = time.Now().Add(req.ExpiresIn)
	}
	key := fmt.Sprintf("sk-made-%d", n)
	h.Keys[key] = k
	return name.NewSecret(key), k, nil
}

func (h *Host) keyOf(idOrName string) (string, api.Key) {
	for key, k := range h.Keys {
		if k.Key == idOrName || k.Name == idOrName {
			return key, k
		}
	}
	return "", api.Key{}
}

// ReplaceAPIKey implements the Host of [boxgate/api/keys].
func (h *Host) ReplaceAPIKey(_ context.Context, key string, _ time.Duration) (name.Secret, api.Key, error) {
	leave, err := h.beginCall()
	defer leave()
	old, k := h.keyOf(key)
	if old == "" || err != nil {
		return name.Secret{}, api.Key{}, api.ErrNotFound
	}
	delete(h.Keys, old)
	h.Keys[old+"-next"] = k
	return name.NewSecret(old + "-next"), k, nil
}

// SetAPIKeyQuotas implements the Host of [boxgate/api/keys].
func (h *Host) SetAPIKeyQuotas(_ context.Context, key string, named map[quota.Kind]int64, model *llm.Limit) (api.Key, error) {
	leave, err := h.beginCall()
	defer leave()
	old, k := h.keyOf(key)
	if old == "" || err != nil {
		return api.Key{}, api.ErrNotFound
	}
	for kind, n := range named {
		k.Quotas[kind] = n
	}
	if model != nil {
		k.Model = *model
	}
	h.Keys[old] = k
	return k, nil
}

// DeleteAPIKey implements the Host of [boxgate/api/keys].
func (h *Host) DeleteAPIKey(_ context.Context, key string) (api.Key, error) {
	leave, err := h.beginCall()
	defer leave()
	old, k := h.keyOf(key)
	if old == "" || err != nil {
		return api.Key{}, api.ErrNotFound
	}
	delete(h.Keys, old)
	return k, nil
}

// ReadTrail implements the Host of [boxgate/api/trail].
func (h *Host) ReadTrail(context.Context, trail.Filter, bool, func([]byte) error) error {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.Unread
}

// VerifyTrail implements the Host of [boxgate/api/trail].
func (h *Host) VerifyTrail(context.Context) (trail.Report, error) { return trail.Report{}, nil }

// BackupStore implements the Store of [boxgate/api/gateway].
func (h *Host) BackupStore(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "copy of the store")
	return err
}

// VerifyStore implements the Store of [boxgate/api/gateway].
func (h *Host) VerifyStore(context.Context) (api.StoreReport, error) {
	return api.StoreReport{Documents: 3, Problems: []string{}}, nil
}

// Observations implements the Host of [boxgate/api/egress] with the sums of the host's decisions.
func (h *Host) Observations(_ context.Context, id policy.BoxID) (observe.Summary, error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	s := observe.Summary{Observations: []observe.Observation{}, Overflow: 2, Lost: 1}
	for i := range h.Decisions {
		if h.Decisions[i].Box == id {
			s.Observations = append(s.Observations, observe.Of(&h.Decisions[i]))
		}
	}
	return s, nil
}

// Activity implements the Host of [boxgate/api/egress] with all of the host's decisions.
func (h *Host) Activity(context.Context) (map[policy.BoxID]audit.Activity, error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	all := map[policy.BoxID]audit.Activity{}
	for _, e := range h.Decisions {
		a := all[e.Box]
		if a.Latest = e; e.Verdict == policy.Deny {
			a.Denied += max(e.Count, 1)
		}
		all[e.Box] = a
	}
	return all, nil
}

// PolicyVersions implements the Versions of [boxgate/api/egress] with the versions of the host's boxes.
func (h *Host) PolicyVersions(_ context.Context, id policy.BoxID, q api.VersionQuery) (api.PolicyVersions, error) {
	list := api.PolicyVersions{Box: id, Versions: []api.PolicyVersion{}}
	for _, doc := range slices.Backward(h.Versions[id]) {
		switch {
		case q.Before != 0 && doc.Version >= q.Before, !q.At.IsZero() && doc.Since.After(q.At):
		case len(list.Versions) == q.Most || !q.At.IsZero() && len(list.Versions) == 1:
			list.More = q.At.IsZero()
			return list, nil
		default:
			list.Versions = append(list.Versions, doc.PolicyVersion)
		}
	}
	if h.Versions[id] == nil {
		return list, api.ErrNotFound
	}
	return list, nil
}

// PolicyVersion implements the Versions of [boxgate/api/egress].
func (h *Host) PolicyVersion(_ context.Context, id policy.BoxID, number uint64) (api.PolicyDocument, error) {
	for _, doc := range h.Versions[id] {
		if doc.Version == number {
			return doc, nil
		}
	}
	return api.PolicyDocument{}, api.Errorf(api.ErrNotFound, "version %d is not in the history", number)
}

// SearchEvents implements the Host of [boxgate/api/egress].
func (h *Host) SearchEvents(_ context.Context, f api.EventSearch, begin func(time.Time), do func(audit.Event) error) error {
	h.Mu.Lock()
	found := h.Decisions
	h.Mu.Unlock()
	begin(time.Unix(100, 0))
	for _, e := range found {
		if (f.Box == "" || e.Box == f.Box) && (!f.Denied || e.Verdict == policy.Deny) && !e.Time.Before(f.Since) && (f.Reason == "" || e.Reason == f.Reason) {
			if err := do(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// AddSSHKey implements the Host of [boxgate/api/keys].
func (h *Host) AddSSHKey(_ context.Context, idOrName, name string, public []byte) (api.Key, error) {
	return h.changeSSHKeys(idOrName, func(k *api.Key) error {
		k.SSHKeys = append(k.SSHKeys, api.SSHKey{ID: fmt.Sprintf("ssh_%d", len(k.SSHKeys)+1), Key: public, Name: name, AddedAt: time.Now()})
		return nil
	})
}

// RemoveSSHKey implements the Host of [boxgate/api/keys].
func (h *Host) RemoveSSHKey(_ context.Context, idOrName, id string) (api.Key, error) {
	return h.changeSSHKeys(idOrName, func(k *api.Key) error {
		k.SSHKeys = slices.DeleteFunc(k.SSHKeys, func(s api.SSHKey) bool { return s.ID == id })
		return nil
	})
}

func (h *Host) changeSSHKeys(idOrName string, change func(*api.Key) error) (api.Key, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.Key{}, err
	}
	key, k := h.keyOf(idOrName)
	if key == "" {
		return api.Key{}, api.ErrNotFound
	}
	k.SSHKeys = slices.Clone(k.SSHKeys)
	err = change(&k)
	h.Keys[key] = k
	return k, err
}
