package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"boxgate/policy"
	"boxgate/store/document"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// History has the versions of policies and header rules, of existing boxes and of deleted ones.
type History struct{ *file }

// book returns the history in a transaction.
func (tx *transaction) book() (b history.Book, err error) {
	tables := make([]document.Table, 3)
	for i, bucket := range [][]byte{layout.HistoryLines, layout.HistoryVersions, layout.HistoryTexts} {
		if tables[i], err = tx.table(bucket); err != nil {
			return b, err
		}
	}
	return history.Book{Lines: tables[0], Versions: tables[1], Texts: tables[2], Bounds: history.Default}, nil
}

// stage stages a document, and records it as a version of its slot's history in the same transaction. All policies and
// header rules of boxes pass here.
func stage(tx *transaction, s slot, document []byte, v history.Version, text []byte) error {
	if s.history.Owner != "" {
		book, err := tx.book()
		if err != nil {
			return err
		}
		holder := func() (string, error) { return holderOf(tx, s.history.Owner) }
		if err := book.Stage(s.history, holder, v, text); errors.Is(err, history.ErrUsed) {
			return fmt.Errorf("the %s had a version %d before: %w: %w", s.label, v.Number, err, ErrConflict)
		} else if err != nil {
			return err
		}
	}
	return tx.put(layout.Staged, []byte(s.staged), document)
}

// holderOf returns the API key that the history of a box is charged to.
func holderOf(tx *transaction, owner string) (string, error) {
	if owner == layout.Global {
		return "", nil
	}
	b, err := boxRecord(tx, policy.BoxID(owner))
	return b.CreatedBy, err
}

// settle records the result of a staged document, which it has since at, in the history of its slot.
func settle(tx *transaction, s slot, r history.Result, at time.Time) error {
	if s.history.Owner == "" {
		return nil
	}
	book, err := tx.book()
	if err != nil {
		return err
	}
	return book.SettleLast(s.history, r, at)
}

// endHistory notes in the history that a box was deleted.
func endHistory(tx *transaction, id policy.BoxID) error {
	book, err := tx.book()
	if err != nil {
		return err
	}
	return book.Delete(string(id), time.Now().UTC())
}

// policyVersion returns the version of a policy, and its text.
func policyVersion(p Policy, by history.Origin) (v history.Version, text []byte, err error) {
	v = history.Version{Number: p.Version, Origin: dated(by), Named: p.Named}
	for _, l := range p.Leases {
		v.Leases = append(v.Leases, history.Lease{Allow: l.Allow, Audit: l.Audit, Entry: l.Entry, StartedAt: l.StartedAt, ExpiresAt: l.ExpiresAt, Key: l.Key})
	}
	text, err = json.Marshal(p.Spec)
	return v, text, err
}

// ShownRule is a header rule in a history, without its secrets and without the requests that it matches.
type ShownRule struct {
	Host    string         `json:"host"`
	Deny    bool           `json:"deny,omitempty"`
	Scrub   bool           `json:"scrub,omitempty"`
	Secrets []string       `json:"secrets,omitempty"` // names of the operator's secrets
	Effects map[string]any `json:"effects,omitempty"` // by kind, as the API shows them
}

// headersVersion returns the version of header rules, and their text.
func headersVersion(rules []policy.HeaderRule, version uint64, by history.Origin) (v history.Version, text []byte, err error) {
	shown := []ShownRule{}
	for _, r := range rules {
		s := ShownRule{Host: r.Pattern.String(), Deny: r.Deny, Scrub: r.Scrub, Secrets: r.Secrets()}
		for _, e := range r.Effects {
			if s.Effects == nil {
				s.Effects = map[string]any{}
			}
			s.Effects[e.Key()] = e.Show()
		}
		shown = append(shown, s)
	}
	text, err = json.Marshal(shown)
	return history.Version{Number: version, Origin: dated(by)}, text, err
}

// dated sets the time of an origin without one.
func dated(by history.Origin) history.Origin {
	if by.At.IsZero() {
		by.At = time.Now()
	}
	by.At = by.At.UTC().Round(0)
	return by
}

// VersionList is a page of the versions of a policy.
type VersionList struct {
	history.Line
	Versions []history.Version // the latest first
	More     bool              // there are older ones
	Until    time.Time         // when the first version after them that was in force came into force; zero: there is none
}

// lineOf returns a line. If it does not exist the error is [ErrNotFound].
func lineOf(book history.Book, id history.ID) (history.Line, error) {
	l, known, err := book.Find(id)
	if err == nil && !known {
		err = fmt.Errorf("history of box %s: %w", id.Owner, ErrNotFound)
	}
	return l, err
}

// Versions returns at most most versions of a line that are older than the version before, the latest first; 0: all of them. If the
// line does not exist the error is [ErrNotFound].
func (db History) Versions(id history.ID, before uint64, most int) (list VersionList, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		if list.Line, err = lineOf(book, id); err != nil {
			return err
		}
		if list.Versions, list.More, err = book.Latest(id, before, most); err == nil && len(list.Versions) > 0 {
			list.Until, err = book.Next(id, list.Versions[0].Number)
		}
		return err
	})
	return list, err
}

// InForceAt returns the version that was in force at a time as a list of at most one.
func (db History) InForceAt(id history.ID, at time.Time) (list VersionList, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		if list.Line, err = lineOf(book, id); err != nil {
			return err
		}
		v, next, found, err := book.InForceAt(id, at)
		if found {
			list.Versions, list.Until = []history.Version{v}, next
		}
		return err
	})
	return list, err
}

// Version returns one version of a line with its text. The error is [ErrNotFound] if the history does not have it.
func (db History) Version(id history.ID, number uint64) (v history.Version, text []byte, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		if v, err = book.Version(id, number); err != nil {
			return err
		}
		found, err := book.Text(v.Digest)
		text = append(text, found...)
		return err
	})
	if errors.Is(err, history.ErrMissing) {
		err = fmt.Errorf("version %d of box %s: %w: %w", number, id.Owner, err, ErrNotFound)
	}
	return v, text, err
}

// Next returns the line of a version, and when the next version that was in force came into force; zero: there is none.
func (db History) Next(id history.ID, number uint64) (l history.Line, next time.Time, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		if l, _, err = book.Find(id); err == nil {
			next, err = book.Next(id, number)
		}
		return err
	})
	return l, next, err
}

// During returns the versions of a line that were in force during an interval, with their texts, the oldest first: at most most,
// the latest ones. A zero until is now. A line that does not exist has none.
func (db History) During(id history.ID, since, until time.Time, most int) (list []history.Version, texts [][]byte, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		if list, err = book.During(id, since, until, most); err != nil {
			return err
		}
		for _, v := range list {
			text, err := book.Text(v.Digest)
			if err != nil {
				return err
			}
			texts = append(texts, append([]byte(nil), text...))
		}
		return nil
	})
	return list, texts, err
}

// LastVersion returns the highest version number that a line ever had, 0 if it has none.
func (db History) LastVersion(id history.ID) (n uint64, err error) {
	err = db.view(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		l, _, err := book.Find(id)
		n = l.Last
		return err
	})
	return n, err
}

// SetCeiling records the ceiling that applies from now on, unless it is the same as before. A nil ceiling is none.
func (db History) SetCeiling(ceiling *policy.Spec, by history.Origin) error {
	text, err := json.Marshal(ceiling)
	if err != nil {
		return err
	}
	id := history.ID{Owner: layout.Global, Kind: history.Ceiling}
	l, err := db.LastVersion(id)
	if err != nil || l == 0 && ceiling == nil {
		return err
	}
	if l > 0 {
		if _, now, err := db.Version(id, l); err == nil && string(now) == string(text) {
			return nil
		}
	}
	return db.update(func(tx *transaction) error {
		book, err := tx.book()
		if err != nil {
			return err
		}
		return book.Add(id, "", history.Version{Number: l + 1, Origin: dated(by)}, text)
	})
}

// expiredAtOnce bounds the lines that one transaction removes.
const expiredAtOnce = 256

// Expire removes the histories of boxes that were deleted before a time.
func (db History) Expire(before time.Time) error {
	for {
		n := 0
		err := db.update(func(tx *transaction) error {
			book, err := tx.book()
			if err == nil {
				n, err = book.Expire(before, expiredAtOnce)
			}
			return err
		})
		if err != nil || n < expiredAtOnce {
			return err
		}
	}
}

// beginHistory records the policies and header rules of boxes that have no history, because an older program set them.
func beginHistory(f *file) error {
	missing := false
	find := func(do func(tx *transaction, book history.Book, id policy.BoxID) error) func(tx *transaction) error {
		return func(tx *transaction) error {
			book, err := tx.book()
			if err != nil {
				return err
			}
			boxes, err := tx.table(layout.Boxes)
			if err != nil {
				return err
			}
			for _, id := range boxes.Keys(nil) {
				if tx.Bucket(layout.Policies).Get(id) == nil || book.Lines.Has(policySlot(policy.BoxID(id)).history.Key()) {
					continue
				}
				if err := do(tx, book, policy.BoxID(id)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err := f.view(find(func(*transaction, history.Book, policy.BoxID) error { missing = true; return nil }))
	if err != nil || !missing {
		return err
	}
	return f.update(find(func(tx *transaction, book history.Book, id policy.BoxID) error {
		return addCommitted(tx, book, id, history.Origin{Cause: history.Upgraded}, 0)
	}))
}

// addCommitted records the committed policy and header rules of a box as versions that are in force. With a jump, they
// get new numbers, higher than all earlier ones by at least the jump.
func addCommitted(tx *transaction, book history.Book, id policy.BoxID, by history.Origin, jump uint64) error {
	holder, err := holderOf(tx, string(id))
	if err != nil {
		return err
	}
	s := policySlot(id)
	p, err := getPolicy(tx, s)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if jump > 0 {
		l, _, err := book.Find(s.history)
		if err != nil {
			return err
		}
		p.Version = max(l.Last, p.Version) + jump
		data, err := json.Marshal(p)
		if err == nil {
			err = tx.put(s.bucket, []byte(s.owner), data)
		}
		if err != nil {
			return err
		}
	}
	v, text, err := policyVersion(p, by)
	if err != nil {
		return err
	}
	if err := book.Add(s.history, holder, v, text); err != nil {
		return err
	}
	return addCommittedHeaders(tx, book, string(id), holder, by, jump)
}

// addCommittedHeaders is the part of addCommitted for header rules, also those of all boxes.
func addCommittedHeaders(tx *transaction, book history.Book, owner, holder string, by history.Origin, jump uint64) error {
	rec, err := readHeaders(tx, owner)
	if err != nil || rec.Version == 0 {
		return err
	}
	s := headerSlot(owner)
	if jump > 0 {
		l, _, err := book.Find(s.history)
		if err != nil {
			return err
		}
		rec.Version = max(l.Last, rec.Version) + jump
		if err := tx.putSealed(layout.Headers, owner, rec); err != nil {
			return err
		}
	}
	headers, err := rec.headers()
	if err != nil {
		return nil //nolint:nilerr // the rules are refused when the box is started; they have no text
	}
	v, text, err := headersVersion(headers.Rules, rec.Version, by)
	if err != nil {
		return err
	}
	return book.Add(s.history, holder, v, text)
}

// checkHistory are the readers of the history for [DB.Verify].
func checkHistory() []bucketReader {
	return []bucketReader{
		{layout.HistoryLines, func(_, value []byte) error { return document.Decode(value, new(map[string]any)) }},
		{layout.HistoryVersions, func(key, value []byte) error {
			var v history.Version
			if err := document.Decode(value, &v); err != nil {
				return err
			}
			if len(key) < 8 {
				return errors.New("the key has no version")
			}
			return checkKey(string(key[len(key)-8:]), string(binary.BigEndian.AppendUint64(nil, v.Number)))
		}},
		{layout.HistoryTexts, history.CheckText},
	}
}
