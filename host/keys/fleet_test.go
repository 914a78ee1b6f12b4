package keys

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/shared"
	quotas "boxgate/quota"
	"boxgate/store"
)

// oneFleet has the records of a fleet, which its hosts apply in turn.
type oneFleet struct {
	records map[string][]byte
	hosts   []*Service
	fenced  bool
	err     error // of changes
}

// Change implements [Fleet].
func (f *oneFleet) Change(_ context.Context, kind shared.Kind, _ bool, edit func(map[string][]byte) error) error {
	if f.err != nil {
		return f.err
	}
	next := maps.Clone(f.records)
	if err := edit(next); err != nil || kind != shared.APIKeys {
		return err
	}
	f.records = next
	for _, h := range f.hosts {
		if err := h.ApplyFleet(next); err != nil {
			return err
		}
	}
	return nil
}

// Fenced implements [Fleet].
func (f *oneFleet) Fenced() bool { return f.fenced }

// hostOf starts a host with a store of its own. changed has the IDs of the keys whose calls are checked again; f may be nil.
func hostOf(t *testing.T, f *oneFleet, dir string, changed *[]string) *Service {
	t.Helper()
	db, err := store.Open(store.Options{Dir: filepath.Join(dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	c := Config{Log: zap.NewNop(), Store: db, Keys: db.Keys, Quotas: quotas.New(quotas.Config{}), Models: noModels{}, Changed: func(id string) { *changed = append(*changed, id) }}
	if f != nil {
		c.Fleet = f
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if f != nil {
		f.hosts = append(f.hosts, s)
	}
	return s
}

// TestKeysOfTheFleet: hosts share keys with their quotas; while a host is fenced they are not valid there, and the host says so. Its own
// keys are. Without its fleet a host has none of them.
func TestKeysOfTheFleet(t *testing.T) {
	t.Parallel()
	f, dir := &oneFleet{records: map[string][]byte{}}, t.TempDir()
	var alone, changedA, changedB []string
	before := hostOf(t, nil, dir, &alone)
	own, _, err := before.CreateAPIKey(t.Context(), api.KeyRequest{Name: "own", Role: api.RoleCreator})
	if err != nil {
		t.Fatal(err)
	}
	_ = before.store.(*store.DB).Close()
	a, b := hostOf(t, f, dir, &changedA), hostOf(t, f, t.TempDir(), &changedB)
	if _, _, err := a.CreateAPIKey(t.Context(), api.KeyRequest{Name: "own", Role: api.RoleCreator}); !errors.Is(err, api.ErrConflict) {
		t.Errorf("the name of a key of the host: %v", err)
	}
	key, made, err := b.CreateAPIKey(t.Context(), api.KeyRequest{Name: "ci", Role: api.RoleCreator, Quotas: quotas.Limits{quotas.Boxes: 7}})
	if err != nil || !made.Fleet {
		t.Fatal(made, err)
	}
	sum := sha256.Sum256([]byte(key.Reveal()))
	if found, ok := a.LookUp(sum); !ok || found.Key != made.Key || a.quotas.Limit(found.Holder(), quotas.Boxes) != 7 {
		t.Errorf("on the other host: %+v, %v", found, ok)
	}
	f.fenced = true
	if found, ok := a.LookUp(sum); ok || !found.Fleet || found.Key != "" {
		t.Errorf("on a fenced host: %+v, %v", found, ok)
	}
	if _, ok := a.LookUp(sha256.Sum256([]byte(own.Reveal()))); !ok {
		t.Error("a fenced host refuses a key of its own")
	}
	f.fenced = false
	set, err := a.SetAPIKeyQuotas(t.Context(), "ci", map[quotas.Kind]int64{quotas.Snapshots: 2}, nil)
	if err != nil || set.Quotas[quotas.Boxes] != 7 || b.quotas.Limit(made.Holder(), quotas.Snapshots) != 2 {
		t.Errorf("quotas set on the other host: %v, %v", set.Quotas, err)
	}
	for _, err := range []error{fleet.ErrUnreachable, shared.ErrFenced, shared.ErrBehind} {
		f.err = err
		if _, err := a.DeleteAPIKey(t.Context(), "ci"); !errors.Is(err, api.ErrUnavailable) {
			t.Error(err)
		}
	}
	f.err = nil
	if _, err := a.DeleteAPIKey(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	if _, ok := b.LookUp(sum); ok || !slices.Contains(changedB, made.Key) {
		t.Errorf("a key that was revoked on the other host: %v, checked again %v", ok, changedB)
	}
	if b.quotas.Limit(made.Holder(), quotas.Boxes) != 7 {
		t.Error("the revocation widened the limits of the key's boxes")
	}
}

// TestKeysAfterTheFleet: a host that is no longer a member has no keys of the fleet.
func TestKeysAfterTheFleet(t *testing.T) {
	t.Parallel()
	f, dir := &oneFleet{records: map[string][]byte{}}, t.TempDir()
	var changed []string
	a := hostOf(t, f, dir, &changed)
	key, _, err := a.CreateAPIKey(t.Context(), api.KeyRequest{Name: "ci", Role: api.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	_ = a.store.(*store.DB).Close()
	if found, ok := hostOf(t, nil, dir, &changed).LookUp(sha256.Sum256([]byte(key.Reveal()))); ok || found.Fleet {
		t.Errorf("%+v, %v", found, ok)
	}
}
