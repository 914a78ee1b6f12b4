package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// Rules has the policies and header rules of boxes, the named policies, and the header rules of all boxes.
type Rules struct{ *file }

// A policy or a set of header rules is changed in two transactions. The first stages it: it is on disk but not applied.
// The second commits it: it replaces the previous one and is no longer staged. The gateway enforces it between the two,
// so after a crash the committed one is valid, and the staged one is dropped.

// commit makes the staged documents the committed ones, all of them atomically.
func (db Rules) commit(slots ...slot) error {
	return db.update(func(tx *transaction) error {
		at := time.Now() // one time for all, so that the history shows them in force together
		for _, s := range slots {
			if err := commitSlot(tx, s, at); err != nil {
				return err
			}
		}
		return nil
	})
}

// StageNetwork stages the policy and the header rules of a box together: [Rules.StagePolicy] and [Rules.StageHeaders] in one
// transaction, with the errors of both. The versions in next and headers are the new ones.
func (db Rules) StageNetwork(id policy.BoxID, next Policy, headers Headers, by history.Origin) error {
	by = dated(by)
	return db.update(func(tx *transaction) error {
		if err := stagePolicy(tx, id, next, by); err != nil {
			return err
		}
		return stageHeaders(tx, string(id), headers.Rules, headers.Version, by)
	})
}

// CommitNetwork makes the staged policy and the staged header rules of a box the committed ones, in one transaction. The error
// is [ErrNotFound] unless both are staged; neither is committed then.
func (db Rules) CommitNetwork(id policy.BoxID) error {
	return db.commit(policySlot(id), headerSlot(string(id)))
}

// AbortNetwork deletes the staged policy and the staged header rules of a box, as far as there are any, in one transaction.
func (db Rules) AbortNetwork(id policy.BoxID) error {
	return db.abort(policySlot(id), headerSlot(string(id)))
}

func commitSlot(tx *transaction, s slot, at time.Time) error {
	document, err := tx.get(layout.Staged, []byte(s.staged))
	if err != nil {
		return err
	}
	if document == nil {
		return fmt.Errorf("staged %s: %w", s.label, ErrNotFound)
	}
	if document, err = committedForm(tx, s, document); err != nil {
		return err
	}
	if err := tx.put(s.bucket, []byte(s.owner), document); err != nil {
		return err
	}
	if err := settle(tx, s, history.InForce, at); err != nil {
		return err
	}
	return tx.delete(layout.Staged, []byte(s.staged))
}

// committedForm returns a copy of a staged document in its committed form.
func committedForm(tx *transaction, s slot, document []byte) ([]byte, error) {
	if !s.sealed {
		return bytes.Clone(document), nil
	}
	key, err := tx.file.seal.Key(tx.Tx)
	if err != nil {
		return nil, err
	}
	plain, err := key.Open(layout.Staged, s.staged, document)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return key.Seal(s.bucket, s.owner, plain), nil
}

// abort deletes the staged documents. Without any it does not write, so that it succeeds on a full disk.
func (db Rules) abort(slots ...slot) error {
	staged := false
	err := db.view(func(tx *transaction) error {
		for _, s := range slots {
			staged = staged || tx.Bucket(layout.Staged).Get([]byte(s.staged)) != nil
		}
		return nil
	})
	if err != nil || !staged {
		return err
	}
	return db.update(func(tx *transaction) error {
		for _, s := range slots {
			if err := errors.Join(settle(tx, s, history.RolledBack, time.Now()), tx.delete(layout.Staged, []byte(s.staged))); err != nil {
				return err
			}
		}
		return nil
	})
}

// Staged returns the policies that were staged and neither committed nor aborted: after a crash, the policies of interrupted
// updates.
func (db Rules) Staged() (map[policy.BoxID]Policy, error) {
	out := map[policy.BoxID]Policy{}
	err := db.eachStaged(func(_ *transaction, c StagedChange, _ string, document []byte) error {
		if c.Headers || c.Named != "" {
			return nil
		}
		var p Policy
		err := decodePolicy(document, policySlot(c.Box), &p)
		out[c.Box] = p
		return err
	})
	return out, err
}

// StagedHeaders returns the header rules that were staged and neither committed nor aborted, by box; "" stands for the
// global ones.
func (db Rules) StagedHeaders() (map[policy.BoxID]Headers, error) {
	out := map[policy.BoxID]Headers{}
	err := db.eachStaged(func(tx *transaction, c StagedChange, key string, document []byte) error {
		if !c.Headers {
			return nil
		}
		var rec headersRecord
		if err := tx.openJSON(layout.Staged, key, document, &rec); err != nil {
			return err
		}
		headers, err := rec.headers()
		out[c.Box] = headers
		return err
	})
	return out, err
}

func (db Rules) eachStaged(f func(tx *transaction, c StagedChange, key string, document []byte) error) error {
	return db.view(func(tx *transaction) error {
		staged, err := tx.table(layout.Staged)
		if err != nil {
			return err
		}
		return staged.Each(nil, func(key, document []byte) error { return f(tx, changeAt(string(key)), string(key), document) })
	})
}

// StagedChange identifies the target of a staged document.
type StagedChange struct {
	Box     policy.BoxID // "": all boxes, or the followers of Named
	Named   string       // the named policy; may be ""
	Headers bool         // a change of header rules, else of the policy
}

// changeAt returns the change that is staged under a key.
func changeAt(key string) StagedChange {
	owner, headers := strings.CutPrefix(key, stagedHeaders)
	if owner == layout.Global {
		owner = ""
	}
	if name, named := strings.CutPrefix(owner, layout.Named); named && !headers {
		return StagedChange{Named: name}
	}
	return StagedChange{Box: policy.BoxID(owner), Headers: headers}
}

// slot returns the slot of the change.
func (c StagedChange) slot() slot {
	switch {
	case c.Named != "":
		return namedSlot(c.Named)
	case c.Headers && c.Box == "":
		return headerSlot(layout.Global)
	case c.Headers:
		return headerSlot(string(c.Box))
	}
	return policySlot(c.Box)
}

// DropStaged deletes everything that is staged and returns the dropped changes. Call it once after [Open], before the
// first change, to roll back changes that a crash interrupted.
func (db Rules) DropStaged() ([]StagedChange, error) {
	var dropped []StagedChange
	err := db.update(func(tx *transaction) error {
		staged, err := tx.table(layout.Staged)
		if err != nil {
			return err
		}
		for _, key := range staged.Keys(nil) {
			c := changeAt(string(key))
			if err := errors.Join(settle(tx, c.slot(), history.Interrupted, time.Now()), staged.Delete(key)); err != nil {
				return err
			}
			dropped = append(dropped, c)
		}
		return nil
	})
	return dropped, err
}

// slot is the place of one document that is changed in two steps.
type slot struct {
	label  string // in errors
	bucket []byte // where it is committed
	owner  string // key in bucket
	staged string // key among the staged documents
	sealed bool   // encrypted for its place

	history history.ID // its line of the history; zero: none
}

// stagedHeaders is the prefix of the keys of staged header rules. Keys of staged policies are the ID of a box, or
// [layout.Named] and a name; neither can contain NUL.
const stagedHeaders = "headers\x00"

func policySlot(id policy.BoxID) slot {
	return slot{label: "policy of box " + string(id), bucket: layout.Policies, owner: string(id), staged: string(id), history: history.ID{Owner: string(id), Kind: history.Policy}}
}

// namedSlot is the slot of a named policy.
func namedSlot(name string) slot {
	key := layout.Named + name
	return slot{label: "named policy " + name, bucket: layout.Policies, owner: key, staged: key}
}

// headerSlot is the slot of the header rules of a box, or of all boxes ([layout.Global]).
func headerSlot(owner string) slot {
	return slot{label: "header rules of " + owner, bucket: layout.Headers, owner: owner, staged: stagedHeaders + owner, sealed: true, history: history.ID{Owner: owner, Kind: history.Headers}}
}
