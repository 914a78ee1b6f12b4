package models

import (
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/config"
	"boxgate/host/state"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/store"
)

// rig is a service on a store, whose boxes belong to an API key.
type rig struct {
	*Service
	t     *testing.T
	db    *store.DB
	boxes *state.Table
	cfg   config.Config
	key   store.APIKey
}

func newRig(t *testing.T, text string) *rig {
	t.Helper()
	cfg, err := config.Parse("test.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{t: t, db: db, cfg: cfg, boxes: &state.Table{ModelLimit: cfg.Limits.Model.Limit()}}
	if _, r.key, err = db.Keys.Create(store.APIKey{Name: "ci", Role: string(api.RoleCreator)}); err != nil {
		t.Fatal(err)
	}
	r.open()
	return r
}

// open makes the service, as a start of the gateway does.
func (r *rig) open() {
	r.t.Helper()
	var err error
	r.Service, err = New(Config{
		Config: r.cfg, Log: zap.NewNop(), Store: r.db.Models, Keys: r.db.Keys, Records: r.db.Boxes, Boxes: r.boxes, History: history.New(r.boxes.Has),
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// add adds a box of a key with limits of its own.
func (r *rig) add(id policy.BoxID, key string, limits api.BoxLimits) *state.Box {
	r.t.Helper()
	record, err := r.db.Boxes.Allocate(store.Box{ID: id, CreatedBy: key, Limits: store.BoxLimits(limits)}, store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42:b0c5::/64"), Reserved: 3})
	if err != nil {
		r.t.Fatal(err)
	}
	b := state.NewBox(record, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
	r.boxes.Add(b)
	return b
}

// limits are two configured limits, and their prices.
const limits = `
prices: {m: {input: 1, output: 10}}
limits: {model: {tokens: 1000, per: day}, model_total: {usd: 1, per: month}}
quotas: {model: {tokens: 1500, per: day}}
`

func TestScope(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits)
	configured, hour, own := llm.Limit{Tokens: 1000, Per: llm.PerDay}, llm.Limit{Tokens: 7, Per: llm.PerHour}, llm.Limit{USD: 5, Per: llm.PerDay}
	none := llm.Limit{Per: llm.PerTotal}
	ofKeys := llm.Limit{Tokens: 1500, Per: llm.PerDay}
	r.add("b1", r.key.ID, api.BoxLimits{})
	r.add("b2", "", api.BoxLimits{OperatorModel: hour, OwnModel: own})
	r.add("b3", "key_revoked", api.BoxLimits{OperatorModel: none})
	for id, want := range map[string]struct {
		box, key []llm.Limit
		of       string
	}{
		"b1": {[]llm.Limit{configured}, []llm.Limit{ofKeys}, r.key.ID}, "b2": {[]llm.Limit{hour, own}, nil, api.OperatorKey}, "b3": {nil, []llm.Limit{ofKeys}, "key_revoked"},
	} {
		got, known := r.scope(id)
		if !known || got.Key != want.of || !slices.Equal(got.Box, want.box) || !slices.Equal(got.KeyLimits, want.key) {
			t.Errorf("%s: %+v, %v", id, got, known)
		}
	}
	if _, known := r.scope("none"); known {
		t.Error("a box that does not exist has a budget")
	}
	r.key.Model = own
	r.SetKey(r.key)
	if got, _ := r.scope("b1"); !slices.Equal(got.KeyLimits, []llm.Limit{own}) {
		t.Errorf("the key's own limit: %+v", got.KeyLimits)
	}
	r.key.Role = string(api.RoleAdmin)
	r.SetKey(r.key)
	if got, _ := r.scope("b1"); got.KeyLimits != nil {
		t.Errorf("the limit of an admin key: %+v", got.KeyLimits)
	}
	r.revoke(r.key)
	if got, _ := r.scope("b1"); !slices.Equal(got.KeyLimits, []llm.Limit{ofKeys}) {
		t.Errorf("the limit of a revoked key without one of its own: %+v", got.KeyLimits)
	}
}

// revoke revokes a key as [boxgate/host/keys] does.
func (r *rig) revoke(k store.APIKey) {
	r.t.Helper()
	if err := r.db.Keys.Delete(k.ID); err != nil {
		r.t.Fatal(err)
	}
	r.RemoveKey(k.ID)
}

// TestLimitOfARevokedKey revokes keys with limits narrower than the configured one, wider, and none. Their boxes keep that limit and its
// use, also after a restart.
func TestLimitOfARevokedKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits)
	for id, own := range map[policy.BoxID]llm.Limit{
		"narrow": {Tokens: 300, Per: llm.PerTotal}, "wide": {Tokens: 5000, Per: llm.PerDay}, "none": {Per: llm.PerTotal},
	} {
		_, key, err := r.db.Keys.Create(store.APIKey{Name: string(id), Role: string(api.RoleCreator), Model: own})
		if err != nil {
			t.Fatal(err)
		}
		r.SetKey(key)
		r.add(id, key.ID, api.BoxLimits{})
		held, err := r.Reserve(string(id), "", llm.Call{Model: "m", Max: 200})
		if err != nil {
			t.Fatal(err)
		}
		held.Settle(llm.Usage{Output: 200, Requests: 1}, "m", true)
		r.revoke(key)
		for range 2 {
			want := []llm.Limit{own}
			if !own.Bounds() {
				want = nil
			}
			if got, _ := r.scope(string(id)); !slices.Equal(got.KeyLimits, want) {
				t.Errorf("%s: %+v", id, got.KeyLimits)
			}
			held, err := r.Reserve(string(id), "", llm.Call{Model: "m", Max: 150})
			if refused := err != nil; refused != (id == "narrow") {
				t.Errorf("%s: refused %v: %v", id, refused, err)
			}
			if err == nil {
				held.Settle(llm.Usage{Requests: 1}, "m", true)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r.open()
		}
	}
}

// TestUseSurvivesARestart reserves and settles on a real store, and reads the sums after a restart. The sums of its key
// and of all boxes keep a deleted box.
func TestUseSurvivesARestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, limits)
	b := r.add("b1", r.key.ID, api.BoxLimits{})
	var meter llm.Meter = r.Service
	held, err := meter.Reserve("b1", "api.example.com", llm.Call{Model: "m", Input: 100, Max: 300})
	if err != nil {
		t.Fatal(err)
	}
	held.Settle(llm.Usage{Input: 90, Output: 200, Requests: 1}, "m", true)
	if _, err := meter.Reserve("b1", "", llm.Call{Model: "m", Max: 800}); err == nil {
		t.Error("a request beyond the limit was let through")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.open()
	check := func(what string, u api.ModelUsage) {
		t.Helper()
		if u.Input != 90 || u.Output != 200 || u.Requests != 1 || u.USD != 90*llm.Dollar/1e6+200*10*llm.Dollar/1e6 || u.AssumedTokens != 0 || len(u.Models) != 1 || len(u.Budgets) != 1 {
			t.Errorf("%s: %+v", what, u)
		}
	}
	check("the box", r.Box("b1"))
	check("the key", r.Key(r.key.ID))
	check("all", r.ModelUsage(t.Context()))
	if err := r.db.Boxes.Delete(b.ID); err != nil {
		t.Fatal(err)
	}
	r.boxes.Remove(b.ID)
	r.Forget(b.ID)
	r.open()
	check("the key of the deleted box", r.Key(r.key.ID))
	check("all with the deleted box", r.ModelUsage(t.Context()))
	if err := r.db.Keys.Delete(r.key.ID); err != nil {
		t.Fatal(err)
	}
	r.open()
	if all, err := r.db.Models.All(); err != nil || len(all) != 1 || all[store.ModelAccountOfAll].Total.Tokens != 290 {
		t.Errorf("after the key is revoked: %+v, %v", all, err)
	}
}
