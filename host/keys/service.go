package keys

import (
	"io"
	"sync"

	"go.uber.org/zap"

	"boxgate/internal/required"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Store is the store as a whole; implemented by [store.DB].
type Store interface {
	RotateKey(newPassphrase name.Secret) error
	Backup(w io.Writer) (int64, error)
	Verify() (store.VerifyReport, error)
}

// Config configures a [Service].
type Config struct {
	Log    *zap.Logger
	Store  Store
	Keys   store.Keys
	Quotas *quotas.Book
	// Changed is called after keys were replaced or revoked, so that open requests are checked again.
	Changed func()
}

// Service manages the API keys, rotates the key of the store, and backs up and verifies the store. Safe for concurrent
// use.
type Service struct {
	log     *zap.Logger
	store   Store
	keys    store.Keys
	quotas  *quotas.Book
	changed func()

	settingQuotas sync.Mutex // serialises read-modify-write of quotas
}

// New returns the service, and loads the quotas of API keys into the book.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	k := &Service{log: c.Log, store: c.Store, keys: c.Keys, quotas: c.Quotas, changed: c.Changed}
	return k, k.loadQuotas()
}

// loadQuotas loads the quotas of API keys into the book.
func (k *Service) loadQuotas() error {
	all, err := k.keys.All()
	for _, found := range all {
		k.quotas.Set(CallerOf(found).Holder(), quotas.LimitsFromMap(found.Quotas))
	}
	return err
}
