package store

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Usage is the total usage of a box since its creation.
type Usage struct {
	CPU        Count `json:"cpu"`  // nanoseconds
	In         Count `json:"in"`   // bytes towards the box
	Out        Count `json:"out"`  // bytes from the box
	OOMKills   Count `json:"oom"`  // processes killed because the box's memory ran out
	PeakMemory int64 `json:"peak"` // bytes

	Period Period `json:"period,omitzero"`
}

// Period is the current quota period of a box.
type Period struct {
	Length int64  `json:"length"` // nanoseconds
	Number int64  `json:"number"` // number of the period since 1970, in periods of that length
	Before uint64 `json:"before"` // bytes that the box had sent and received in all when the period began
}

// Count is the sum of kernel counters, each of which starts from zero.
type Count struct {
	Total uint64 `json:"total"`
	Life  string `json:"life,omitempty"` // identifies the counter that was read last
	Seen  uint64 `json:"seen,omitempty"` // its value then, which is part of Total
}

// Usages returns the stored usage of each box.
func (db *DB) Usages() (map[policy.BoxID]Usage, error) {
	all := map[policy.BoxID]Usage{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		t, err := db.table(tx, layout.Usage)
		if err != nil {
			return err
		}
		for _, id := range t.Keys(nil) {
			data, err := t.Get(id)
			if err != nil {
				return err
			}
			var u Usage
			if err := document.Decode(data, &u); err != nil {
				return fmt.Errorf("the usage of box %s is damaged: %w", id, err)
			}
			all[policy.BoxID(id)] = u
		}
		return nil
	})
	return all, err
}

// SaveUsages stores the usage of boxes in one transaction. It skips boxes that no longer exist.
func (db *DB) SaveUsages(all map[policy.BoxID]Usage) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		t, err := db.table(tx, layout.Usage)
		if err != nil {
			return err
		}
		for id, u := range all {
			if requireBox(tx, id) != nil {
				continue
			}
			data, err := json.Marshal(u)
			if err != nil {
				return err
			}
			if err := t.Put([]byte(id), data); err != nil {
				return err
			}
		}
		return nil
	})
}
