package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/layout"
)

// Models has the accounts of models: the use by boxes, by API keys and by all boxes together.
type Models struct{ *file }

// ModelAccount is the use of models by one account. Total plus Ahead is at least the amount used and reserved at any time until the next
// write, so that a process that ends without a last write has lost no charge.
type ModelAccount struct {
	Total   ModelAmount `json:"total"`
	Ahead   ModelAmount `json:"ahead,omitzero"`
	Assumed ModelAmount `json:"assumed,omitzero"` // the part of Total without a report of its vendor

	Hour  ModelWindow `json:"hour,omitzero"`
	Day   ModelWindow `json:"day,omitzero"`
	Month ModelWindow `json:"month,omitzero"`

	Models map[string]ModelSum `json:"models,omitempty"` // by model
}

// ModelAmount is a number of tokens and their price.
type ModelAmount struct {
	Tokens uint64    `json:"tokens,omitempty"`
	USD    llm.Money `json:"usd,omitempty"`
}

// ModelWindow is the use in one period.
type ModelWindow struct {
	Number int64       `json:"number"` // of the period: hours or days since 1970, or months since year 0
	Used   ModelAmount `json:"used,omitzero"`
}

// ModelSum is the use of one model.
type ModelSum struct {
	Input      uint64    `json:"input,omitempty"`
	Output     uint64    `json:"output,omitempty"`
	CacheRead  uint64    `json:"cache_read,omitempty"`
	CacheWrite uint64    `json:"cache_write,omitempty"`
	Reasoning  uint64    `json:"reasoning,omitempty"`
	Requests   uint64    `json:"requests,omitempty"`
	USD        llm.Money `json:"usd,omitempty"`
}

// Keys of the accounts: of all boxes together, and prefixes for boxes and API keys.
const (
	ModelAccountOfAll = layout.Global
	modelsOfBox       = "box "
	modelsOfKey       = "key "
)

// ModelAccountOfBox returns the key of the account of a box.
func ModelAccountOfBox(id policy.BoxID) string { return modelsOfBox + string(id) }

// ModelAccountOfKey returns the key of the account of an API key, by its ID.
func ModelAccountOfKey(id string) string { return modelsOfKey + id }

// All returns the accounts by their keys.
func (db Models) All() (map[string]ModelAccount, error) {
	all := map[string]ModelAccount{}
	err := db.view(func(tx *transaction) error {
		t, err := tx.table(layout.Models)
		if err != nil {
			return err
		}
		return t.Each(nil, func(key, data []byte) error {
			var a ModelAccount
			if err := document.Decode(data, &a); err != nil {
				return fmt.Errorf("the use of models of %q is damaged: %w", key, err)
			}
			all[string(key)] = a
			return nil
		})
	})
	return all, err
}

// Save stores accounts in one transaction. It skips the accounts of boxes that no longer exist.
func (db Models) Save(all map[string]ModelAccount) error {
	return db.update(func(tx *transaction) error {
		t, err := tx.table(layout.Models)
		if err != nil {
			return err
		}
		for key, a := range all {
			if id, ofBox := strings.CutPrefix(key, modelsOfBox); ofBox && requireBox(tx, policy.BoxID(id)) != nil {
				continue
			}
			data, err := json.Marshal(a)
			if err != nil {
				return err
			}
			if err := t.Put([]byte(key), data); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete removes accounts.
func (db Models) Delete(keys ...string) error {
	return db.update(func(tx *transaction) error {
		var errs []error
		for _, key := range keys {
			errs = append(errs, tx.delete(layout.Models, []byte(key)))
		}
		return errors.Join(errs...)
	})
}

// checkModels checks an account. A box's must belong to one of boxes.
func checkModels(boxes map[string]Box) func(key string, a ModelAccount) error {
	return func(key string, a ModelAccount) error {
		id, ofBox := strings.CutPrefix(key, modelsOfBox)
		if _, known := boxes[id]; ofBox && !known {
			return fmt.Errorf("it belongs to box %s, which does not exist", id)
		}
		if !ofBox && !strings.HasPrefix(key, modelsOfKey) && key != ModelAccountOfAll {
			return fmt.Errorf("%q is no account", key)
		}
		for _, w := range []ModelWindow{a.Hour, a.Day, a.Month} {
			if w.Used.Tokens > a.Total.Tokens || w.Used.USD > a.Total.USD {
				return errors.New("a period has more than the total")
			}
		}
		return nil
	}
}
