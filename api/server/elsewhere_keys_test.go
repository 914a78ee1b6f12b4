package server

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/apitest"
	"boxgate/api/elsewhere"
	"boxgate/policy"
)

// otherHost is a fleet with one other host, bbbbbb, which has the box bbbbbb0000000001 with the name far.
type otherHost struct {
	mu     sync.Mutex
	sought []string // by Owner
	sent   []string // method and path of forwarded requests
}

func (o *otherHost) Owner(_ context.Context, idOrName string) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sought = append(o.sought, idOrName)
	if idOrName == "far" || access.LooksLikeID(idOrName) && idOrName[:6] == "bbbbbb" {
		return "bbbbbb", nil
	}
	return "", nil
}

func (o *otherHost) Forward(w http.ResponseWriter, r *http.Request, _ string, _ func(error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, r.Method+" "+r.URL.Path)
	w.WriteHeader(http.StatusTeapot)
}

func (o *otherHost) Place(context.Context) ([]string, error) { return []string{"bbbbbb"}, nil }

func (o *otherHost) Ask(context.Context, elsewhere.Call) []elsewhere.Answer {
	return nil
}

func (o *otherHost) Listed(context.Context, string) []api.Box { return nil }

// calls returns what the fleet was asked since the last call.
func (o *otherHost) calls() (sought, sent []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sought, sent = o.sought, o.sent
	o.sought, o.sent = nil, nil
	return sought, sent
}

// besideOther serves the API of a host of a fleet with callers by their keys.
func besideOther(t *testing.T, callers map[string]api.Caller) (*fixture, *otherHost) {
	t.Helper()
	o := &otherHost{}
	f := serve(t, func(cfg *Config) {
		find := cfg.FindKey
		cfg.Elsewhere = o
		cfg.FindKey = func(key string) (api.Caller, bool) {
			if c, ok := callers[key]; ok {
				return c, true
			}
			return find(key)
		}
	})
	return f, o
}

// with calls with another key than the operator's.
func with(key string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(api.KeyHeader, key) }
}

// TestAttackKeyOfThisHostElsewhere: a key that is valid on this host alone is not sent to another one, where somebody could use it against this
// host. Keys of the fleet are.
func TestAttackKeyOfThisHostElsewhere(t *testing.T) {
	t.Parallel()
	f, o := besideOther(t, map[string]api.Caller{
		"local": {Key: "key_1", Name: "local", Role: api.RoleCreator}, "fleet": {Key: "key_2", Name: "fleet", Role: api.RoleAdmin, Fleet: true},
	})
	for _, call := range [][2]string{{"GET", "/v2/box/bbbbbb0000000001"}, {"GET", "/v2/box/far"}, {"DELETE", "/v2/box/far"}, {"POST", "/v2/box?placement=spread"}} {
		for _, key := range []string{apitest.Key, "local"} {
			got := f.Call(t, call[0], call[1], "", with(key))
			if _, sent := o.calls(); got.StatusCode != http.StatusForbidden || len(sent) > 0 {
				t.Errorf("%v with %s: %s, sent: %q", call, key, got.Status, sent)
			}
		}
		got := f.Call(t, call[0], call[1], "", with("fleet"))
		if _, sent := o.calls(); got.StatusCode != http.StatusTeapot || len(sent) != 1 {
			t.Errorf("%v with a key of the fleet: %s, sent: %q", call, got.Status, sent)
		}
	}
}

// TestAttackNamesByAKeyForOneBox: a key for one box, which may be in the box, causes no look-up of names in the fleet, and learns nothing about
// them: each is sought where its own box is.
func TestAttackNamesByAKeyForOneBox(t *testing.T) {
	t.Parallel()
	f, o := besideOther(t, map[string]api.Caller{
		"there": {Key: "key_1", Name: "there", Role: api.RoleBox, Box: policy.BoxID("bbbbbb0000000001"), Fleet: true},
		"here":  {Key: "key_2", Name: "here", Role: api.RoleBox, Box: policy.BoxID("aaaaaa0000000001"), Fleet: true},
		"reads": {Key: "key_3", Name: "reads", Role: api.RoleReader, Fleet: true},
	})
	for _, name := range []string{"far", "nowhere"} {
		for key, want := range map[string]int{"there": http.StatusTeapot, "here": http.StatusNotFound} {
			got := f.Call(t, "GET", "/v2/box/"+name, "", with(key))
			if sought, _ := o.calls(); got.StatusCode != want || slices.Contains(sought, name) {
				t.Errorf("%s with %s: %s, looked up: %q", name, key, got.Status, sought)
			}
		}
	}
	for _, name := range []string{"far", "nowhere", "bbbbbb0000000002"} { // nor does a deletion of several boxes
		got := f.Call(t, "DELETE", "/v2/box", `{"ids":["`+name+`"]}`, with("here"))
		if sought, _ := o.calls(); got.StatusCode != http.StatusNotFound || slices.Contains(sought, name) {
			t.Errorf("deletion of %s: %s, looked up: %q", name, got.Status, sought)
		}
	}
	for _, key := range []string{"there", "here"} { // another box of the same host
		got := f.Call(t, "GET", "/v2/box/bbbbbb0000000002", "", with(key))
		if _, sent := o.calls(); got.StatusCode != http.StatusNotFound || len(sent) > 0 {
			t.Errorf("%s: %s, sent: %q", key, got.Status, sent)
		}
	}
	// Neither does a call that the role of its key does not allow.
	got := f.Call(t, "DELETE", "/v2/box/far", "", with("reads"))
	if sought, sent := o.calls(); got.StatusCode != http.StatusForbidden || len(sought)+len(sent) > 0 {
		t.Errorf("%s, looked up: %q, sent: %q", got.Status, sought, sent)
	}
}
