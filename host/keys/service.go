package keys

import (
	"sync"

	"go.uber.org/zap"

	"boxgate/internal/required"
	quotas "boxgate/quota"
	"boxgate/store"
)

// Config has the parts of a [Service].
type Config struct {
	Log    *zap.Logger
	Store  *store.DB
	Quotas *quotas.Book
	// Changed is called after keys were replaced or revoked: requests that are open are judged anew.
	Changed func()
}

// Service keeps the API keys, changes the key of the store, and copies and checks the store. Safe for concurrent use.
type Service struct {
	log     *zap.Logger
	store   *store.DB
	quotas  *quotas.Book
	changed func()

	settingQuotas sync.Mutex // one change at a time reads what it changes
}

// New makes the service. The quotas of keys that have some of their own are known to the book when it returns.
func New(c Config) (*Service, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	k := &Service{log: c.Log, store: c.Store, quotas: c.Quotas, changed: c.Changed}
	return k, k.loadQuotas()
}

// loadQuotas has the books know the quotas of keys that have some of their own.
func (k *Service) loadQuotas() error {
	all, err := k.store.APIKeys()
	for _, found := range all {
		k.quotas.Set(CallerOf(found).Holder(), quotas.FromMap(found.Quotas))
	}
	return err
}
