package keysecrets

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// configured are secrets of a configuration.
type configured map[string]string

func (c configured) Secret(_ context.Context, n string) (name.Secret, error) {
	return name.NewSecret(c[n]), nil
}
func (c configured) Has(n string) bool { return c[n] != "" }

// noQuota permits everything.
type noQuota struct{}

func (noQuota) Reserve(context.Context, quotas.Kind, int64) (func(), error) { return func() {}, nil }

// rig is a service over a store, with two API keys that are not admin keys.
type rig struct {
	*Service
	db   *store.DB
	a, b api.Caller
	cut  []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	var err error
	if r.db, err = store.Open(store.Options{Dir: t.TempDir() + "/state"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	for n, c := range map[string]*api.Caller{"a": &r.a, "b": &r.b} {
		_, made, err := r.db.Keys.Create(store.APIKey{Name: n, Role: string(api.RoleCreator), ExpiresAt: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		*c = api.Caller{Key: made.ID, Name: n, Role: api.RoleCreator}
	}
	r.open(t)
	return r
}

// open opens the service, as after a restart.
func (r *rig) open(t *testing.T) {
	t.Helper()
	values, err := Open(zap.NewNop(), configured{"openai": "sk-of-the-operator"}, r.db.KeySecrets, r.db.Keys)
	if err != nil {
		t.Fatal(err)
	}
	r.Service, err = New(Config{Log: zap.NewNop(), Values: values, Holdings: noQuota{}, Cut: func(id string) { r.cut = append(r.cut, id) }, Replaced: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) store(t *testing.T, by api.Caller, n, value string, hosts ...string) string {
	t.Helper()
	made, err := r.CreateKeySecret(api.WithCaller(t.Context(), by), n, api.KeySecretChange{Value: name.NewSecret(value), Hosts: &hosts})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

func (r *rig) value(id string) (string, error) {
	v, err := r.Secret(context.Background(), id)
	return v.Reveal(), err
}

func pattern(t *testing.T, text string) name.Pattern {
	t.Helper()
	p, err := name.ParsePattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAKeyFindsOnlyItsOwnSecrets: neither by name nor by ID does a rule of one key refer to a secret of another or of the operator.
func TestAKeyFindsOnlyItsOwnSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.store(t, r.a, "openai", "sk-of-a")
	for _, n := range []string{"openai", id} {
		if source, flaw, found := r.Find(r.a.Key, n, name.Pattern{}); !found || flaw != "" || source != id {
			t.Errorf("its own: %q %q %v", source, flaw, found)
		}
		for _, key := range []string{r.b.Key, "", store.OperatorKey} {
			if _, _, found := r.Find(key, n, name.Pattern{}); found {
				t.Errorf("the key %q finds %q", key, n)
			}
		}
	}
	if v, err := r.value(id); err != nil || v != "sk-of-a" {
		t.Error(v, err)
	}
	if v, err := r.value("openai"); err != nil || v != "sk-of-the-operator" {
		t.Error("the operator's:", v, err)
	}
	admin := api.WithCaller(t.Context(), api.Caller{Key: store.OperatorKey, Role: api.RoleAdmin})
	if _, err := r.CreateKeySecret(admin, "openai", api.KeySecretChange{Value: name.NewSecret("x")}); !errors.Is(err, api.ErrConflict) {
		t.Error("an admin key stored a secret with the name of one of the configuration:", err)
	}
}

// TestSecretsAreBoundToTheirHosts: a rule for other hosts may not name the secret, and a request to another host does not get it.
func TestSecretsAreBoundToTheirHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.store(t, r.a, "s", "sk-of-a", "api.example.com", "*.example.org:8443")
	for host, ok := range map[string]bool{
		"api.example.com": true, "api.example.com:443": true, "api.example.com:8443": false, "*.example.com": false, "x.example.org": false, "x.example.org:8443": true,
		"*.y.example.org:8443": true, "evil.example": false,
	} {
		if _, flaw, found := r.Find(r.a.Key, "s", pattern(t, host)); !found || (flaw == "") != ok {
			t.Errorf("a rule for %s: %q", host, flaw)
		}
	}
	evil, _ := name.Parse("evil.example")
	own, _ := name.Parse("api.example.com")
	now := r.Snapshot()
	if now.Permits(id, evil, 443) == nil || now.Permits(id, own, 8443) == nil || now.Permits(id, own, 443) != nil || now.Permits("openai", evil, 443) != nil {
		t.Error("hosts are not checked at the request")
	}
}

// TestReplacedValues: a snapshot keeps one value, later ones have the new one, also after a restart.
func TestReplacedValues(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.store(t, r.a, "s", "first", "api.example.com")
	before := r.Snapshot()
	changed, err := r.ReplaceKeySecret(api.WithCaller(t.Context(), r.a), id, api.KeySecretChange{Value: name.NewSecret("second")})
	if err != nil || changed.Version != 2 || len(changed.Hosts) != 1 {
		t.Fatal(changed, err)
	}
	if v, _ := before.Secret(t.Context(), id); v.Reveal() != "first" {
		t.Error("a request in between has both values")
	}
	for range 2 {
		if v, err := r.value(id); err != nil || v != "second" {
			t.Error(v, err)
		}
		r.open(t)
	}
}

// TestDeletedSecretsAreNotUsed: a deleted secret has no value, its requests are cut, and it does not come back with a restart.
func TestDeletedSecretsAreNotUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.store(t, r.a, "s", "first")
	if err := r.DeleteKeySecret(t.Context(), id); err != nil || len(r.cut) != 1 || r.cut[0] != id {
		t.Fatal(err, r.cut)
	}
	for range 2 {
		if v, err := r.value(id); err == nil || !strings.Contains(err.Error(), "store it again") {
			t.Error(v, err)
		}
		r.open(t)
	}
	if err := r.DeleteKeySecret(t.Context(), id); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
}

// TestSecretsEndWithTheirKey: a revoked or expired key leaves no secret, in force or in the store; other keys keep theirs.
func TestSecretsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone, kept := r.store(t, r.a, "s", "of-a"), r.store(t, r.b, "s", "of-b")
	if _, _, err := r.db.Keys.Replace(r.b.Key, 0); err != nil { // a new value is the same key
		t.Fatal(err)
	}
	if err := r.db.Keys.Delete(r.a.Key); err != nil {
		t.Fatal(err)
	}
	r.KeyChanged(r.a.Key)
	for range 2 {
		if v, err := r.value(gone); err == nil {
			t.Error(v)
		}
		if v, err := r.value(kept); err != nil || v != "of-b" {
			t.Error(v, err)
		}
		if all, err := r.db.KeySecrets.All(); err != nil || len(all) != 1 {
			t.Error(len(all), err)
		}
		r.open(t)
	}
	if len(r.cut) != 1 || r.cut[0] != gone {
		t.Error(r.cut)
	}
	if _, err := r.CreateKeySecret(api.WithCaller(t.Context(), r.a), "late", api.KeySecretChange{Value: name.NewSecret("x")}); !errors.Is(err, api.ErrNotFound) {
		t.Error("a revoked key stored a secret:", err)
	}
	state := r.now.Load()
	state.ends[r.b.Key] = time.Now().Add(-time.Second) // expired
	if v, err := r.value(kept); err == nil {
		t.Error("of an expired key:", v)
	}
}

// TestSecretsOfEndedKeysLeaveTheStore: the change of any key deletes the secrets of all that have ended, from the store as well.
func TestSecretsOfEndedKeysLeaveTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := r.store(t, r.a, "s", "of-a")
	r.store(t, r.b, "s", "of-b")
	if err := r.db.Keys.Remove(r.a.Key); err != nil { // its record alone, as at an expiry
		t.Fatal(err)
	}
	r.KeyChanged(r.b.Key)
	if all, err := r.db.KeySecrets.All(); err != nil || len(all) != 1 || all[0].Key != r.b.Key {
		t.Errorf("%d secrets in the store, %v", len(all), err)
	}
	if v, err := r.value(gone); err == nil || len(r.cut) != 1 {
		t.Error(v, r.cut)
	}
}

// TestOthersLeaveRoomForAdmins: keys that are not admin keys cannot take all of the room.
func TestOthersLeaveRoomForAdmins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	large := store.KeySecret{Key: r.b.Key, Name: "large", Metadata: map[string]string{"x": strings.Repeat("x", maxOthers)}}
	if err := r.checkRoom(r.a, large); !errors.Is(err, api.ErrLimit) {
		t.Error(err)
	}
	if err := r.checkRoom(api.Caller{Role: api.RoleAdmin}, large); err != nil {
		t.Error(err)
	}
}
