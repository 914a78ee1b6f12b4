package keys

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/e2b/token"
	quotas "boxgate/quota"
	"boxgate/store"
)

// noModels are keys without use of models.
type noModels struct{}

func (noModels) SetKey(store.APIKey)       {}
func (noModels) RemoveKey(string)          {}
func (noModels) Key(string) api.ModelUsage { return api.ModelUsage{} }

// TestQuotasOfARevokedKey revokes keys with quotas of their own. They stay for the certificates of a public URL, also after a restart; those
// of a key without boxes do no harm.
func TestQuotasOfARevokedKey(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	var book *quotas.Book
	start := func() *Service {
		t.Helper()
		book = quotas.New(quotas.Config{Defaults: quotas.Limits{quotas.Certificates: 20}})
		s, err := New(Config{Log: zap.NewNop(), Store: db, Keys: db.Keys, Quotas: book, Models: noModels{}, Changed: func(string) {}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := start()
	own := quotas.Limits{quotas.Certificates: 2, quotas.Boxes: 7}
	_, key, err := s.CreateAPIKey(t.Context(), api.KeyRequest{Name: "ci", Role: api.RoleCreator, Quotas: own})
	if err != nil {
		t.Fatal(err)
	}
	pools := store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42:b0c5::/64"), Reserved: 3}
	if _, err := db.Boxes.Allocate(store.Box{ID: "b1", CreatedBy: key.Key}, pools); err != nil {
		t.Fatal(err)
	}
	holder := quotas.Holder{Type: quotas.APIKey, ID: key.Key}
	for range 2 {
		if err := book.Rate(holder, quotas.Certificates); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.DeleteAPIKey(t.Context(), key.Key); err != nil {
		t.Fatal(err)
	}
	if err := book.Rate(holder, quotas.Certificates); err == nil {
		t.Error("the revocation of its key gave a URL more certificates")
	}
	start()
	if n := book.Limit(holder, quotas.Certificates); n != 2 {
		t.Errorf("after a restart the limit is %d", n)
	}
}

// TestOwners: changes of API keys are seen by the next look, a key in its grace is listed with its successor, and looks in between do not
// read the store.
func TestOwners(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s, err := New(Config{Log: zap.NewNop(), Store: db, Keys: db.Keys, Quotas: quotas.New(quotas.Config{}), Models: noModels{}, Changed: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	count := func(id string, want int) {
		t.Helper()
		if got := s.Owners(id); len(got) != want {
			t.Errorf("%d API keys of %q, want %d", len(got), id, want)
		}
	}
	count("", 0)
	_, key, err := s.CreateAPIKey(t.Context(), api.KeyRequest{Name: "ci", Role: api.RoleCreator})
	if err != nil {
		t.Fatal(err)
	}
	count(key.Key, 1)
	count("", 1)
	count("key_other", 0)
	if _, _, err := s.ReplaceAPIKey(t.Context(), key.Key, time.Hour); err != nil {
		t.Fatal(err)
	}
	count(key.Key, 2)
	if _, err := s.DeleteAPIKey(t.Context(), key.Key); err != nil {
		t.Fatal(err)
	}
	count(key.Key, 0)
	reads := 0
	var o owners
	for range 100 {
		if _, err := o.all(func() ([]token.Owner, error) { reads++; return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if reads > 50 {
		t.Errorf("100 looks read the store %d times", reads)
	}
}
