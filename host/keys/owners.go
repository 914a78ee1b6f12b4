package keys

import (
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api/e2b/token"
)

// ownersAge is how long the list of API keys is used before it is read again. Changes of API keys by this process drop it.
const ownersAge = time.Second

// owners are the API keys that access tokens of boxes can belong to. A client may make the gateway look through them as often as it
// likes, so they are not read from the store each time. The zero value is empty. Safe for concurrent use.
type owners struct {
	mu   sync.Mutex
	list []token.Owner // replaced as a whole
	read time.Time     // zero: it must be read
}

// forget has the list read again.
func (o *owners) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read = time.Time{}
}

// all returns the API keys, with read unless they are known. If that fails there is no key.
func (o *owners) all(read func() ([]token.Owner, error)) ([]token.Owner, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); o.read.IsZero() || now.Sub(o.read) >= ownersAge {
		list, err := read()
		if err != nil {
			return nil, err
		}
		o.list, o.read = list, now
	}
	return o.list, nil
}

// Owners lists the API keys of an ID, a key and its predecessors within their grace, or all API keys for "". Some may have ended, so a
// caller must look up the one that it chooses. Without a store there are none.
func (k *Service) Owners(id string) []token.Owner {
	list, err := k.owners.all(func() (list []token.Owner, err error) {
		all, err := k.keys.All()
		for _, found := range all {
			list = append(list, token.Owner{ID: found.ID, Hash: found.Hash})
		}
		return list, err
	})
	if err != nil {
		k.log.Error("the API keys cannot be read; no access token of a box is valid", zap.Error(err))
	}
	if id == "" {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(o token.Owner) bool { return o.ID != id })
}
