package store

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// Policy is the policy of a box as written, with its temporary entries; or a named policy, which has neither leases nor
// Named.
type Policy struct {
	Spec    policy.Spec `json:"spec"`
	Version uint64      `json:"version"`
	Leases  []Lease     `json:"leases,omitempty"`
	// Named is the named policy that the box follows; may be "". Spec is a copy of its spec: both change in one
	// transaction.
	Named string `json:"named,omitempty"`
	// Resource is the BoxgatePolicy, NAMESPACE/NAME, that a named policy belongs to; "": it is the operator's.
	Resource string `json:"resource,omitempty"`
	// Fleet is set for a named policy of the fleet: the SHA-256 of the fleet's record that it comes from, in hexadecimal digits. Version is the
	// fleet's then.
	Fleet string `json:"fleet,omitempty"`
	// Gone is set for the policy of a deleted resource, or one that the fleet has deleted, which boxes still follow.
	Gone bool `json:"gone,omitempty"`
	// Problem is why a policy of the fleet cannot be in force on this host. Spec denies everything then; "": it is in force.
	Problem string `json:"problem,omitempty"`
}

// Lease is a temporary entry of a policy.
type Lease struct {
	Allow bool   `json:"allow"`           // else it denies
	Audit bool   `json:"audit,omitempty"` // with Allow and no Entry: the policy is audited instead of enforced
	Entry string `json:"entry"`           // a domain or CIDR as in a policy; with Before, an entry for requests
	// Before is the digest of the request rule that an entry for requests precedes. Without such a rule, the entry has no effect.
	Before    string    `json:"before,omitempty"`
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Key       string    `json:"key,omitempty"` // ID of the API key that made it; "" if an older version did
	// Boot identifies a boot of the host. BootEnd is the end of the lease, as the time since that boot.
	Boot    string        `json:"boot,omitempty"`
	BootEnd time.Duration `json:"boot_end_ns,omitempty"`
}

// Policy returns the committed policy of a box, or [ErrNotFound].
func (db Rules) Policy(id policy.BoxID) (Policy, error) {
	var p Policy
	err := db.view(func(tx *transaction) (err error) {
		p, err = getPolicy(tx, policySlot(id))
		return err
	})
	return p, err
}

// LastVersion returns the highest version that the policy of a box ever had, 0 if it never had one. A version that was
// rolled back counts too.
func (db Rules) LastVersion(id policy.BoxID) (uint64, error) {
	return History{db.file}.LastVersion(policySlot(id).history)
}

// PastPolicy returns a version of the policy of a box as it was written, without temporary entries. The error is [ErrNotFound] if the
// history does not have it.
func (db Rules) PastPolicy(id policy.BoxID, version uint64) (s policy.Spec, err error) {
	_, text, err := History{db.file}.Version(policySlot(id).history, version)
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(text, &s)
	return s, err
}

// NoteEnded records as many further versions of the committed policy of a box as leases of it have ended without a stored
// version: each may have been in force for a moment before the gateway ended. Call it at a start.
func (db Rules) NoteEnded(id policy.BoxID, leases uint64) error {
	return db.update(func(tx *transaction) error {
		s := policySlot(id)
		p, err := getPolicy(tx, s)
		if err != nil {
			return err
		}
		book, err := tx.book()
		if err != nil {
			return err
		}
		holder := func() (string, error) { return holderOf(tx, string(id)) }
		l, _, err := book.Find(s.history)
		if err != nil {
			return err
		}
		last := max(l.Last, p.Version)
		for n := range leases {
			p.Version = last + 1 + n
			v, text, err := policyVersion(p, history.Origin{Cause: history.LeaseExpired})
			if err == nil {
				err = book.Stage(s.history, holder, v, text)
			}
			if err == nil {
				err = book.Settle(s.history, v.Number, history.Interrupted, v.At)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// StagePolicy stores a policy next to the committed one, replacing one staged before. It is not applied until
// [Rules.CommitPolicy]. The version must be higher than that of the committed policy and than all that the box ever had,
// else the error is [ErrConflict]. by is recorded in the history of the box.
func (db Rules) StagePolicy(id policy.BoxID, next Policy, by history.Origin) error {
	return db.update(func(tx *transaction) error { return stagePolicy(tx, id, next, by) })
}

func stagePolicy(tx *transaction, id policy.BoxID, next Policy, by history.Origin) error {
	if err := requireBox(tx, id); err != nil {
		return err
	}
	return stageNewer(tx, policySlot(id), next, by)
}

// stageNewer stages a policy whose version is higher than that of the committed one.
func stageNewer(tx *transaction, s slot, next Policy, by history.Origin) error {
	old, found, err := committedVersion(tx, s)
	if err != nil {
		return err
	} else if found && next.Version <= old {
		return fmt.Errorf("the %s already has version %d, which version %d cannot follow: %w", s.label, old, next.Version, ErrConflict)
	}
	return stagePolicyAt(tx, s, next, by)
}

// stagePolicyAt stages a policy, whatever the version of the committed one is.
func stagePolicyAt(tx *transaction, s slot, next Policy, by history.Origin) error {
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	v, text, err := policyVersion(next, by)
	if err != nil {
		return err
	}
	return stage(tx, s, data, v, text)
}

// CommitPolicy makes the staged policy of a box the committed one. The error is [ErrNotFound] without a staged one.
func (db Rules) CommitPolicy(id policy.BoxID) error { return db.commit(policySlot(id)) }

// AbortPolicy deletes the staged policy of a box, if there is one.
func (db Rules) AbortPolicy(id policy.BoxID) error { return db.abort(policySlot(id)) }

// committedVersion returns the version of a slot's committed policy, if there is one, without decoding the rest of it.
func committedVersion(tx *transaction, s slot) (version uint64, found bool, err error) {
	data, err := tx.get(layout.Policies, []byte(s.owner))
	if err != nil || data == nil {
		return 0, false, err
	}
	var p struct {
		Version *uint64 `json:"version"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return 0, false, fmt.Errorf("the %s is damaged: %w", s.label, err)
	}
	if p.Version == nil {
		return 0, false, fmt.Errorf("the %s is damaged: it has no version", s.label)
	}
	return *p.Version, true, nil
}

func getPolicy(tx *transaction, s slot) (p Policy, err error) {
	data, err := tx.get(layout.Policies, []byte(s.owner))
	if err != nil {
		return p, err
	}
	if data == nil {
		return p, fmt.Errorf("%s: %w", s.label, ErrNotFound)
	}
	err = decodePolicy(data, s, &p)
	return p, err
}

func decodePolicy(data []byte, s slot, p *Policy) error {
	if err := document.Decode(data, p); err != nil {
		return fmt.Errorf("the %s is damaged: %w", s.label, err)
	}
	return nil
}

// NamedPolicies returns the committed named policies.
func (db Rules) NamedPolicies() (map[string]Policy, error) {
	out := map[string]Policy{}
	err := db.view(func(tx *transaction) error {
		policies, err := tx.table(layout.Policies)
		if err != nil {
			return err
		}
		return policies.Each([]byte(layout.Named), func(key, data []byte) error {
			name, p := strings.TrimPrefix(string(key), layout.Named), Policy{}
			err := decodePolicy(data, namedSlot(name), &p)
			out[name] = p
			return err
		})
	})
	return out, err
}

// StageNamed stores a named policy and the policies of the boxes that follow it, in one transaction, next to the
// committed ones. They are not applied until [Rules.CommitNamed]. Each version must be higher than the committed one's,
// else the error is [ErrConflict], except that of a policy of the fleet, whose etcd may have been restored from an older backup. by is
// recorded in the histories of the boxes.
func (db Rules) StageNamed(name string, next Policy, boxes map[policy.BoxID]Policy, by history.Origin) error {
	return db.update(func(tx *transaction) error {
		for id, p := range boxes {
			if err := stagePolicy(tx, id, p, by); err != nil {
				return err
			}
		}
		if next.Fleet != "" {
			return stagePolicyAt(tx, namedSlot(name), next, by)
		}
		return stageNewer(tx, namedSlot(name), next, by)
	})
}

// KeepNamed replaces what is recorded of a named policy beside its content: the boxes that follow it, and its version, stay. The error is
// [ErrConflict] if the content is another.
func (db Rules) KeepNamed(name string, next Policy) error {
	return db.update(func(tx *transaction) error {
		s := namedSlot(name)
		now, err := getPolicy(tx, s)
		if err != nil {
			return err
		}
		if !reflect.DeepEqual(now.Spec, next.Spec) {
			return fmt.Errorf("the %s has another content: %w", s.label, ErrConflict)
		}
		data, err := json.Marshal(next)
		if err != nil {
			return err
		}
		policies, err := tx.table(layout.Policies)
		if err != nil {
			return err
		}
		return policies.Put([]byte(s.owner), data)
	})
}

// CommitNamed makes a staged named policy and the staged policies of those boxes the committed ones, in one
// transaction. If any of them is not staged the error is [ErrNotFound], and all policies stay.
func (db Rules) CommitNamed(name string, boxes []policy.BoxID) error {
	return db.commit(namedSlots(name, boxes)...)
}

// AbortNamed deletes the policies that [Rules.StageNamed] has stored and [Rules.CommitNamed] has not committed.
func (db Rules) AbortNamed(name string, boxes []policy.BoxID) error {
	return db.abort(namedSlots(name, boxes)...)
}

func namedSlots(name string, boxes []policy.BoxID) []slot {
	slots := []slot{namedSlot(name)}
	for _, id := range boxes {
		slots = append(slots, policySlot(id))
	}
	return slots
}

// DeleteNamed deletes a named policy. The error is [ErrConflict] if a box follows it, and [ErrNotFound] if it does not
// exist.
func (db Rules) DeleteNamed(name string) error {
	return db.update(func(tx *transaction) error {
		policies, err := tx.table(layout.Policies)
		if err != nil {
			return err
		}
		s := namedSlot(name)
		if _, err := getPolicy(tx, s); err != nil {
			return err
		}
		err = policies.Each(nil, func(key, data []byte) error {
			var of Policy
			if err := document.Decode(data, &of); err != nil {
				return fmt.Errorf("the policy at %q is damaged: %w", key, err)
			}
			if of.Named == name {
				return fmt.Errorf("%s is in use by box %s: %w", s.label, key, ErrConflict)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return policies.Delete([]byte(s.owner))
	})
}

// policyFollowers finds policies of boxes that differ from the named policy that they follow.
type policyFollowers struct {
	named map[string]Policy
	boxes map[string]Policy // by key; only boxes that follow a named policy
}

func (f *policyFollowers) read(key string, p Policy) error {
	if name, ok := strings.CutPrefix(key, layout.Named); ok {
		f.named[name] = p
	} else if p.Named != "" {
		f.boxes[key] = p
	}
	return checkPolicy(key, p)
}

// problems describes the differences.
func (f *policyFollowers) problems() (list []string) {
	for key, p := range f.boxes {
		if named, ok := f.named[p.Named]; !ok {
			list = append(list, fmt.Sprintf("policies, %q: it follows the named policy %q, which does not exist", key, p.Named))
		} else if !reflect.DeepEqual(p.Spec, named.Spec) {
			list = append(list, fmt.Sprintf("policies, %q: it differs from the named policy %q", key, p.Named))
		}
	}
	slices.Sort(list)
	return list
}
