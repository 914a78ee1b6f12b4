package keys

import (
	"sync"

	"go.uber.org/zap"

	"boxgate/internal/required"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Config configures a [Service].
type Config struct {
	Log    *zap.Logger
	Store  *store.DB
	Quotas *quotas.Book
	// Changed is called after keys were replaced or revoked, so that open requests are checked again.
	Changed func()
}

// Service manages the API keys, rotates the key of the store, and backs up and verifies the store. Safe for concurrent
// use.
type Service struct {
	log     *zap.Logger
	store   *store.DB
	quotas  *quotas.Book
	changed func()

	settingQuotas sync.Mutex // serialises read-modify-write of quotas
}

// New returns the service, and loads the quotas of API keys into the book.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	k := &Service{log: c.Log, store: c.Store, quotas: c.Quotas, changed: c.Changed}
	return k, k.loadQuotas()
}

// loadQuotas loads the quotas of API keys into the book.
func (k *Service) loadQuotas() error {
	all, err := k.store.APIKeys()
	for _, found := range all {
		k.quotas.Set(CallerOf(found).Holder(), quotas.FromMap(found.Quotas))
	}
	return err
}
