package store

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

// headersRecord is how header rules are written, before they are sealed.
type headersRecord struct {
	Version uint64       `json:"version"`
	Rules   []ruleRecord `json:"rules"`
}

type ruleRecord struct {
	Pattern string         `json:"pattern"`
	Headers []headerRecord `json:"headers"`
}

type headerRecord struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Headers returns the header rules of a box. If none were ever set they are empty, with version 0.
func (db *DB) Headers(id policy.BoxID) (Headers, error) { return db.getHeaders(string(id)) }

// GlobalHeaders returns the header rules of every box. If none were ever set they are empty, with version 0.
func (db *DB) GlobalHeaders() (Headers, error) { return db.getHeaders(global) }

// SetHeaders replaces the header rules of a box. The version must be higher than the one before ([ErrConflict]).
func (db *DB) SetHeaders(id policy.BoxID, rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return db.putHeaders(tx, string(id), rules, version)
	})
}

// SetGlobalHeaders replaces the header rules of every box. The version must be higher than the one before
// ([ErrConflict]).
func (db *DB) SetGlobalHeaders(rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error { return db.putHeaders(tx, global, rules, version) })
}

func (db *DB) getHeaders(owner string) (Headers, error) {
	var rec headersRecord
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		rec, err = db.headersRecord(tx, owner)
		return err
	})
	if err != nil {
		return Headers{}, err
	}
	out := Headers{Version: rec.Version}
	for _, r := range rec.Rules {
		pattern, err := policy.ParsePattern(r.Pattern)
		if err != nil {
			return Headers{}, fmt.Errorf("a header rule in the store has no valid pattern; set the rules again: %w", err)
		}
		rule := policy.HeaderRule{Pattern: pattern}
		for _, h := range r.Headers {
			rule.Headers = append(rule.Headers, policy.Header{Name: h.Name, Value: policy.NewSecret(h.Value)})
		}
		out.Rules = append(out.Rules, rule)
	}
	return out, nil
}

func (db *DB) headersRecord(tx *bolt.Tx, owner string) (headersRecord, error) {
	var rec headersRecord
	sealed := tx.Bucket(bucketHeaders).Get([]byte(owner))
	if sealed == nil {
		return rec, nil
	}
	return rec, db.seal.openJSON(bucketHeaders, owner, sealed, &rec)
}

func (db *DB) putHeaders(tx *bolt.Tx, owner string, rules []policy.HeaderRule, version uint64) error {
	old, err := db.headersRecord(tx, owner)
	if err != nil {
		return err
	}
	if version <= old.Version {
		return fmt.Errorf("the header rules have version %d already, %d cannot follow: %w", old.Version, version, ErrConflict)
	}
	rec := headersRecord{Version: version}
	for _, r := range rules {
		w := ruleRecord{Pattern: r.Pattern.String()}
		for _, h := range r.Headers {
			w.Headers = append(w.Headers, headerRecord{h.Name, h.Value.Reveal()})
		}
		rec.Rules = append(rec.Rules, w)
	}
	sealed, err := db.seal.sealJSON(bucketHeaders, owner, rec)
	if err != nil {
		return err
	}
	return tx.Bucket(bucketHeaders).Put([]byte(owner), sealed)
}
