package store

import (
	"cmp"
	"errors"
	"sync"

	"boxgate/store/layout"
)

// Holdings are the stored objects of one API key.
type Holdings struct {
	URLs      int64 // public URLs
	Domains   int64 // host names of public URLs, served or pending
	Snapshots int64
	Schedules int64
}

func (h Holdings) plus(sign int64, more Holdings) Holdings {
	h.URLs += sign * more.URLs
	h.Domains += sign * more.Domains
	h.Snapshots += sign * more.Snapshots
	h.Schedules += sign * more.Schedules
	return h
}

// holdings are the objects of each key, counted on first use and adjusted by every later committed transaction. Safe
// for concurrent use.
type holdings struct {
	mu     sync.Mutex
	byKey  map[string]Holdings // by ID of the key; nil: not counted yet
	lastTx int                 // ID of the last transaction that the count includes
}

// Holdings returns the stored objects that the API key with an ID has made; [OperatorKey] also stands for objects whose
// record has no key. After the first call, it takes constant time.
func (db Keys) Holdings(key string) (Holdings, error) {
	h := &db.holdings
	h.mu.Lock() // for the whole count, so that no later transaction is missed: see adjust
	defer h.mu.Unlock()
	if h.byKey == nil {
		err := db.view(func(tx *transaction) (err error) {
			h.lastTx = tx.ID()
			h.byKey, err = countHoldings(tx)
			return err
		})
		if err != nil {
			h.byKey = nil
			return Holdings{}, err
		}
	}
	return h.byKey[key], nil
}

// adjustOnCommit adds sign times the objects of a key once the transaction is committed. creator is the key as in
// records, "" for the operator's.
func (tx *transaction) adjustOnCommit(creator string, sign int64, objects Holdings) {
	id := tx.ID()
	tx.OnCommit(func() { tx.file.holdings.adjust(id, cmp.Or(creator, OperatorKey), sign, objects) })
}

// subtractReplaced subtracts the objects of a record that is about to be replaced or deleted. If the record could not
// be read (err), everything is counted again.
func (tx *transaction) subtractReplaced(creator string, objects Holdings, err error) {
	switch {
	case err == nil:
		tx.adjustOnCommit(creator, -1, objects)
	case !errors.Is(err, ErrNotFound):
		tx.OnCommit(tx.file.holdings.reset)
	}
}

func (h *holdings) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byKey = nil
}

func (h *holdings) adjust(tx int, key string, sign int64, objects Holdings) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey == nil || tx <= h.lastTx {
		return // the count includes it, or will
	}
	if now := h.byKey[key].plus(sign, objects); now != (Holdings{}) {
		h.byKey[key] = now
	} else {
		delete(h.byKey, key)
	}
}

// countHoldings counts the objects of each key.
func countHoldings(tx *transaction) (map[string]Holdings, error) {
	all := map[string]Holdings{}
	add := func(creator string, objects Holdings) {
		key := cmp.Or(creator, OperatorKey)
		all[key] = all[key].plus(1, objects)
	}
	each := func(table []byte, f func(key, data []byte) error) error {
		t, err := tx.table(table)
		if err != nil {
			return err
		}
		return t.Each(nil, f)
	}
	return all, errors.Join(
		each(layout.URLs, func(_, data []byte) error {
			r, err := decodeURL(data)
			add(r.Owner, ofURL(r.URL))
			return err
		}),
		each(layout.Snapshots, func(key, sealed []byte) error {
			var s Snapshot
			err := tx.openJSON(layout.Snapshots, string(key), sealed, &s)
			add(s.TakenBy, Holdings{Snapshots: 1})
			return err
		}),
		each(layout.Schedules, func(key, sealed []byte) error {
			var s Schedule
			err := tx.openJSON(layout.Schedules, string(key), sealed, &s)
			add(s.CreatedBy, Holdings{Schedules: 1})
			return err
		}),
	)
}

func ofURL(u URL) Holdings {
	return Holdings{URLs: 1, Domains: int64(len(u.Hostnames) + len(u.Pending))}
}
