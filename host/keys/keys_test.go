package keys

import (
	"net/netip"
	"path/filepath"
	"testing"

	"go.uber.org/zap"

	"boxgate/api"
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
