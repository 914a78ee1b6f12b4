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
	Pattern      string              `json:"pattern"`
	Headers      []headerRecord      `json:"headers"`
	Placeholders []placeholderRecord `json:"placeholders,omitempty"`
	Scrub        bool                `json:"scrub,omitempty"`
}

type headerRecord struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	Suffix string `json:"suffix,omitempty"`
}

type placeholderRecord struct {
	Variable string `json:"variable"`
	Value    string `json:"value,omitempty"`
	Source   string `json:"source,omitempty"`
}

// recordOf is what is kept of a rule. Tokens follow from the box's key and are not kept.
func recordOf(r policy.HeaderRule) ruleRecord {
	w := ruleRecord{Pattern: r.Pattern.String(), Scrub: r.Scrub}
	for _, h := range r.Headers {
		w.Headers = append(w.Headers, headerRecord{h.Name, h.Value.Reveal(), h.Source, h.Prefix, h.Suffix})
	}
	for _, p := range r.Placeholders {
		w.Placeholders = append(w.Placeholders, placeholderRecord{p.Variable, p.Value.Reveal(), p.Source})
	}
	return w
}

// rule is the reverse of recordOf.
func (w ruleRecord) rule() (policy.HeaderRule, error) {
	pattern, err := policy.ParsePattern(w.Pattern)
	if err != nil {
		return policy.HeaderRule{}, fmt.Errorf("a header rule in the store has no valid pattern; set the rules again: %w", err)
	}
	rule := policy.HeaderRule{Pattern: pattern, Scrub: w.Scrub}
	for _, h := range w.Headers {
		rule.Headers = append(rule.Headers, policy.Header{
			Name: h.Name, Value: policy.NewSecret(h.Value), Source: h.Source, Prefix: h.Prefix, Suffix: h.Suffix,
		})
	}
	for _, p := range w.Placeholders {
		rule.Placeholders = append(rule.Placeholders, policy.Placeholder{
			Variable: p.Variable, Value: policy.NewSecret(p.Value), Source: p.Source,
		})
	}
	return rule, nil
}

// Headers returns the header rules of a box. If none were ever set they are empty, with version 0.
func (db *DB) Headers(id policy.BoxID) (Headers, error) { return db.getHeaders(string(id)) }

// GlobalHeaders returns the header rules of every box. If none were ever set they are empty, with version 0.
func (db *DB) GlobalHeaders() (Headers, error) { return db.getHeaders(global) }

// StageHeaders keeps header rules of a box beside the committed ones, in the place of such as were staged before. They are
// in force for nobody until [DB.CommitHeaders]. The version must be higher than the committed one, else the error is
// [ErrConflict].
func (db *DB) StageHeaders(id policy.BoxID, rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return db.stageHeaders(tx, string(id), rules, version)
	})
}

// CommitHeaders makes the staged header rules of a box the committed ones. Without staged ones the error is [ErrNotFound].
func (db *DB) CommitHeaders(id policy.BoxID) error { return db.commit(headerSlot(string(id))) }

// AbortHeaders forgets the staged header rules of a box, if there are any.
func (db *DB) AbortHeaders(id policy.BoxID) error { return db.abort(headerSlot(string(id))) }

// StageGlobalHeaders is [DB.StageHeaders] for the header rules of every box.
func (db *DB) StageGlobalHeaders(rules []policy.HeaderRule, version uint64) error {
	return db.bolt.Update(func(tx *bolt.Tx) error { return db.stageHeaders(tx, global, rules, version) })
}

// CommitGlobalHeaders is [DB.CommitHeaders] for the header rules of every box.
func (db *DB) CommitGlobalHeaders() error { return db.commit(headerSlot(global)) }

// AbortGlobalHeaders is [DB.AbortHeaders] for the header rules of every box.
func (db *DB) AbortGlobalHeaders() error { return db.abort(headerSlot(global)) }

func (db *DB) getHeaders(owner string) (Headers, error) {
	var rec headersRecord
	err := db.bolt.View(func(tx *bolt.Tx) (err error) {
		rec, err = db.headersRecord(tx, owner)
		return err
	})
	if err != nil {
		return Headers{}, err
	}
	return rec.headers()
}

func (db *DB) headersRecord(tx *bolt.Tx, owner string) (headersRecord, error) {
	var rec headersRecord
	headers, err := db.table(tx, bucketHeaders)
	if err != nil {
		return rec, err
	}
	sealed, err := headers.get([]byte(owner))
	if sealed == nil {
		return rec, err
	}
	return rec, db.seal.openJSON(tx, bucketHeaders, owner, sealed, &rec)
}

// headers is what a record says.
func (rec headersRecord) headers() (Headers, error) {
	out := Headers{Version: rec.Version}
	for _, r := range rec.Rules {
		rule, err := r.rule()
		if err != nil {
			return Headers{}, err
		}
		out.Rules = append(out.Rules, rule)
	}
	return out, nil
}

// stageHeaders seals header rules in the place where they are staged.
func (db *DB) stageHeaders(tx *bolt.Tx, owner string, rules []policy.HeaderRule, version uint64) error {
	old, err := db.headersRecord(tx, owner)
	if err != nil {
		return err
	}
	if version <= old.Version {
		return fmt.Errorf("the header rules have version %d already, %d cannot follow: %w", old.Version, version, ErrConflict)
	}
	rec := headersRecord{Version: version}
	for _, r := range rules {
		rec.Rules = append(rec.Rules, recordOf(r))
	}
	slot := headerSlot(owner)
	sealed, err := db.seal.sealJSON(tx, bucketStaged, slot.staged, rec)
	if err != nil {
		return err
	}
	return db.stage(tx, slot, sealed)
}
