package store

import (
	"fmt"
	"slices"
	"time"

	"boxgate/policy"
	"boxgate/store/layout"
)

// Approvals has the requests of boxes for access, with the answers to them.
type Approvals struct{ *file }

// Approval is a request of a box for access, and the answer to it. It is sealed as a whole, because its texts are the box's.
type Approval struct {
	ID        string        `json:"id"`
	Box       policy.BoxID  `json:"box"`
	Host      string        `json:"host,omitempty"`   // a name, or an address
	Port      uint16        `json:"port,omitempty"`   // 0 with an address
	Method    string        `json:"method,omitempty"` // of requests; "" for the destination itself
	Path      string        `json:"path,omitempty"`
	Entry     string        `json:"entry"`  // the entry of a policy that allows it
	Reason    string        `json:"reason"` // text of the box
	Lasts     time.Duration `json:"lasts,omitempty"`
	State     string        `json:"state"`               // open, or the answer
	Candidate string        `json:"candidate,omitempty"` // digest of the effect that was approved
	Answer    string        `json:"answer,omitempty"`    // reason of the answer
	Key       string        `json:"key,omitempty"`       // ID of the API key that answered
	KeyName   string        `json:"key_name,omitempty"`
	Human     string        `json:"human,omitempty"`      // why a reviewer left the answer to a person; "" if none did
	Until     time.Time     `json:"until,omitzero"`       // end of the access that was approved for a time
	Version   uint64        `json:"version,omitempty"`    // of the policy with the approved access
	CreatedAt time.Time     `json:"created_at"`           // when the box asked
	ExpiresAt time.Time     `json:"expires_at"`           // when the request is forgotten
	ClosedAt  time.Time     `json:"answered_at,omitzero"` // zero: it is open
}

// List returns the approvals of a box, or of all boxes if id is "", oldest first.
func (db Approvals) List(id policy.BoxID) ([]Approval, error) {
	var out []Approval
	err := db.view(func(tx *transaction) error {
		t, err := tx.table(layout.Approvals)
		if err != nil {
			return err
		}
		return t.Each(urlPrefix(id), func(key, sealed []byte) error {
			var a Approval
			err := tx.openJSON(layout.Approvals, string(key), sealed, &a)
			out = append(out, a)
			return err
		})
	})
	slices.SortFunc(out, func(a, b Approval) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, err
}

// Add stores a new approval and deletes others of its box, in one transaction. The box must exist.
func (db Approvals) Add(a Approval, forget []string) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, a.Box); err != nil {
			return err
		}
		for _, id := range forget {
			if err := tx.delete(layout.Approvals, approvalKey(a.Box, id)); err != nil {
				return err
			}
		}
		return tx.putSealed(layout.Approvals, string(approvalKey(a.Box, a.ID)), a)
	})
}

// Change changes an approval and returns it, or returns [ErrNotFound]. If change returns an error, the approval stays as it is.
func (db Approvals) Change(box policy.BoxID, id string, change func(*Approval) error) (Approval, error) {
	var a Approval
	err := db.update(func(tx *transaction) error {
		a = Approval{}
		found, err := tx.getSealed(layout.Approvals, string(approvalKey(box, id)), &a)
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("approval %q of box %s: %w", id, box, ErrNotFound)
		}
		if err := change(&a); err != nil {
			return err
		}
		a.Box, a.ID = box, id
		return tx.putSealed(layout.Approvals, string(approvalKey(box, id)), a)
	})
	return a, err
}

// Delete deletes approvals of a box. Missing ones are skipped.
func (db Approvals) Delete(box policy.BoxID, ids []string) error {
	return db.update(func(tx *transaction) error {
		for _, id := range ids {
			if err := tx.delete(layout.Approvals, approvalKey(box, id)); err != nil {
				return err
			}
		}
		return nil
	})
}

func deleteApprovals(tx *transaction, box policy.BoxID) error {
	t, err := tx.table(layout.Approvals)
	if err != nil {
		return err
	}
	for _, key := range t.Keys(urlPrefix(box)) {
		if err := t.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

func approvalKey(box policy.BoxID, id string) []byte { return scheduleKey(box, id) }
