// Package history keeps the versions of policies and of header rules, so that the policy version in a decision leads to
// the policy that decided, and to the caller who set it.
//
// The versions of one policy, or of the header rules of one box, are a [Line]. A version is recorded in the transaction
// that stages it, before it is enforced, and its [Result] in the transaction that commits or aborts it: so each version
// that ever decided has a record, also if it was rolled back. Numbers are never reused ([Book.Stage]).
//
// Texts are stored once, however many versions have them: see [Book.Text]. The amount is bounded for each line, for each
// API key and in all; what a bound removes is counted ([Line.Dropped]).
package history

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"slices"
	"time"

	"boxgate/store/document"
	"boxgate/store/layout"
)

// Kind is the kind of the documents of a line.
type Kind byte

// The kinds of lines.
const (
	Policy  Kind = 'p' // policies of a box
	Headers Kind = 'h' // header rules of a box, or of all boxes
	Ceiling Kind = 'c' // the operator's ceiling
)

// Everyone is the owner of lines that concern all boxes.
const Everyone = layout.Global

// ID identifies a line: the box, or [Everyone], and the kind.
type ID struct {
	Owner string
	Kind  Kind
}

// Key returns the key of the line. The keys of its versions begin with it.
func (l ID) Key() []byte { return append(append([]byte(l.Owner), 0), byte(l.Kind)) }

func (l ID) versionKey(n uint64) []byte { return binary.BigEndian.AppendUint64(l.Key(), n) }

// Cause is the kind of event that made a version.
type Cause string

// The causes of versions.
const (
	Created      Cause = "create"        // with the box
	Replaced     Cause = "set"           // by a caller of the API
	Approved     Cause = "approved"      // an entry was added for good, by an answer to a request of the box
	NamedChanged Cause = "named_policy"  // the named policy that the box follows was changed
	LeaseBegun   Cause = "lease_begun"   // temporary entries were added
	LeaseEnded   Cause = "lease_ended"   // temporary entries were ended by a caller of the API
	LeaseExpired Cause = "lease_expired" // temporary entries have ended at their time
	Configured   Cause = "configuration" // the configuration of the gateway was changed
	Restored     Cause = "restore"       // the store was restored from a backup
	Upgraded     Cause = "upgrade"       // it was in force when the history began, by an upgrade from a version without one
)

// Origin tells who made a version, when and by what. All fields but At and Cause are empty if no caller of the API did.
type Origin struct {
	At     time.Time `json:"at"`
	Cause  Cause     `json:"cause"`
	KeyID  string    `json:"key_id,omitempty"` // ID of the API key; of an expired lease: of the key that made it
	Key    string    `json:"key,omitempty"`    // name of the key
	Role   string    `json:"role,omitempty"`
	Remote string    `json:"remote,omitempty"` // address of the caller, or unix and the user
	Call   string    `json:"call,omitempty"`   // method and route of the call
}

// Result is the outcome of a change.
type Result string

// The results of changes. A version that was rolled back or interrupted may have decided for a moment.
const (
	Staged      Result = ""            // not complete yet
	InForce     Result = "in_force"    // committed; it was in force until the next committed version
	RolledBack  Result = "rolled_back" // enforcing or storing it failed
	Interrupted Result = "interrupted" // the gateway ended before the version was committed
)

// Lease is a temporary entry of a policy.
type Lease struct {
	Allow     bool      `json:"allow"`           // else it denies
	Audit     bool      `json:"audit,omitempty"` // with Allow and no Entry: the policy was audited instead of enforced
	Entry     string    `json:"entry"`
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Key       string    `json:"key,omitempty"` // ID of the API key that made it
}

// Version is one version of a line.
type Version struct {
	Number uint64 `json:"version"`
	Origin
	Result Result    `json:"result,omitempty"`
	Since  time.Time `json:"since,omitzero"`   // when it was committed; zero: never
	Named  string    `json:"named,omitempty"`  // the named policy that the box followed
	Leases []Lease   `json:"leases,omitempty"` // temporary entries beside the text; each ends by itself at its time
	Digest string    `json:"digest"`           // of the text
	Size   int64     `json:"size"`             // of the text, in bytes
}

// Line is the state of a line without its versions.
type Line struct {
	Last    uint64    `json:"last"`              // the highest number ever staged
	Current uint64    `json:"current,omitempty"` // the number that was committed last
	Count   int       `json:"count"`             // versions
	Bytes   int64     `json:"bytes"`             // of the versions, each with its whole text
	Stored  int64     `json:"stored"`            // part of the total: of the versions, and of the texts that no version had before
	Dropped uint64    `json:"dropped,omitempty"` // versions that were removed to keep within the bounds
	Holder  string    `json:"holder,omitempty"`  // the API key that is charged for it
	Deleted time.Time `json:"deleted,omitzero"`  // when the box was deleted
}

// Errors of a [Book].
var (
	ErrUsed    = errors.New("the version number was used before")
	ErrMissing = errors.New("the version is not in the history")
)

// Book is the history in one transaction.
type Book struct {
	Lines    document.Table // a [Line] under the key of its ID, and the totals
	Versions document.Table // a [Version] under the key of its line and its number
	Texts    document.Table // the text under its SHA-256, and the number of its versions if it has several
	Bounds   Bounds
}

// Find returns the state of a line. It is zero if the line does not exist.
func (b Book) Find(id ID) (l Line, known bool, err error) {
	known, err = get(b.Lines, id.Key(), &l)
	return l, known, err
}

// Version returns one version of a line, or [ErrMissing].
func (b Book) Version(id ID, number uint64) (v Version, err error) {
	known, err := get(b.Versions, id.versionKey(number), &v)
	if err == nil && !known {
		err = ErrMissing
	}
	return v, err
}

// Latest returns at most most versions of a line with numbers below before, the latest first, and whether there are older
// ones. A zero before or most is no limit.
func (b Book) Latest(id ID, before uint64, most int) (list []Version, more bool, err error) {
	for number := range b.below(id, before) {
		if most != 0 && len(list) == most {
			return list, true, nil
		}
		v, err := b.Version(id, number)
		if err != nil {
			return nil, false, err
		}
		list = append(list, v)
	}
	return list, false, nil
}

// below iterates over the numbers of the versions of a line that are below a number, the highest first; 0: all. It reads no
// version. The line must not change meanwhile.
func (b Book) below(id ID, number uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		prefix, c := id.Key(), b.Versions.Cursor()
		if number == 0 {
			number = math.MaxUint64
		}
		key, _ := c.Seek(id.versionKey(number))
		if key == nil {
			key, _ = c.Last()
		} else {
			key, _ = c.Prev()
		}
		for ; bytes.HasPrefix(key, prefix) && yield(binary.BigEndian.Uint64(key[len(prefix):])); key, _ = c.Prev() {
		}
	}
}

// InForceAt returns the version that was in force at a time, if the line has it, and when the next one came into force; zero: there is
// none. It reads only the versions since that time.
func (b Book) InForceAt(id ID, at time.Time) (v Version, next time.Time, known bool, err error) {
	for number := range b.below(id, 0) {
		if v, err = b.Version(id, number); err != nil {
			return Version{}, next, false, err
		}
		switch {
		case v.Result != InForce:
		case !v.Since.After(at):
			return v, next, true, nil
		default:
			next = v.Since
		}
	}
	return Version{}, time.Time{}, false, nil
}

// Next returns when the version after the given one that was in force came into force; zero: there is none. It reads only the versions
// between them.
func (b Book) Next(id ID, number uint64) (time.Time, error) {
	prefix, c := id.Key(), b.Versions.Cursor()
	for key, _ := c.Seek(id.versionKey(number + 1)); bytes.HasPrefix(key, prefix); key, _ = c.Next() {
		v, err := b.Version(id, binary.BigEndian.Uint64(key[len(prefix):]))
		if err != nil || v.Result == InForce {
			return v.Since, err
		}
	}
	return time.Time{}, nil
}

// During returns the versions of a line that were in force from since until until, the oldest first: at most most of them,
// the latest ones. A version that came into force at until counts only if that is also since. A zero until is now.
func (b Book) During(id ID, since, until time.Time, most int) (list []Version, err error) {
	for number := range b.below(id, 0) {
		v, err := b.Version(id, number)
		switch {
		case err != nil:
			return nil, err
		case v.Result != InForce || !until.IsZero() && v.Since.After(since) && !v.Since.Before(until):
			continue
		}
		list = append(list, v)
		if !v.Since.After(since) || len(list) == most {
			break
		}
	}
	slices.Reverse(list)
	return list, nil
}

// Text returns the text with a digest, or [ErrMissing]. It is valid during the transaction.
func (b Book) Text(digest string) ([]byte, error) {
	key, err := hex.DecodeString(digest)
	if err != nil {
		return nil, ErrMissing
	}
	text, err := b.Texts.Get(key)
	if err == nil && text == nil {
		err = ErrMissing
	}
	return text, err
}

// Stage records a version with its text, before it is enforced. Its number must be higher than every earlier one, also of
// versions that were rolled back, or be that of the staged version that it replaces; else the error is [ErrUsed]. holder returns
// the API key that is charged; it is only called for the first version of a line.
func (b Book) Stage(id ID, holder func() (string, error), v Version, text []byte) error {
	l, known, err := b.Find(id)
	if err == nil && !known {
		l.Holder, err = holder()
	}
	if err != nil {
		return err
	}
	if v.Number <= l.Last {
		if old, err := b.Version(id, v.Number); err != nil || old.Result != Staged {
			return errors.Join(ErrUsed, ignoreMissing(err))
		}
	}
	v.Result, v.Since = Staged, time.Time{}
	return b.write(id, &l, v, text)
}

// Add records a version that is in force since its origin's time, as [Book.Stage] and [Book.Settle] do.
func (b Book) Add(id ID, holder string, v Version, text []byte) error {
	if err := b.Stage(id, func() (string, error) { return holder, nil }, v, text); err != nil {
		return err
	}
	return b.Settle(id, v.Number, InForce, v.At)
}

// Settle records the result of a staged version. It is a no-op for a version that is missing or has a result.
func (b Book) Settle(id ID, number uint64, r Result, at time.Time) error {
	l, known, err := b.Find(id)
	if err != nil || !known {
		return err
	}
	return b.settle(id, l, number, r, at)
}

// SettleLast is Settle for the version that was staged last.
func (b Book) SettleLast(id ID, r Result, at time.Time) error {
	l, known, err := b.Find(id)
	if err != nil || !known {
		return err
	}
	return b.settle(id, l, l.Last, r, at)
}

// settle is Settle for a line that was read.
func (b Book) settle(id ID, l Line, number uint64, r Result, at time.Time) error {
	key := id.versionKey(number)
	data, err := b.Versions.Get(key)
	if err != nil || data == nil {
		return err
	}
	var v Version
	if err := document.DecodeOwn(data, &v); err != nil || v.Result != Staged {
		return err
	}
	if v.Result = r; r == InForce {
		v.Since, l.Current = at, max(l.Current, number)
	}
	was := int64(len(data))
	size, err := put(b.Versions, key, v)
	if err != nil {
		return err
	}
	t, err := b.totals()
	if err != nil {
		return err
	}
	l.Bytes, l.Stored, t.Bytes = l.Bytes+size-was, l.Stored+size-was, t.Bytes+size-was
	_, err = put(b.Lines, id.Key(), l)
	return errors.Join(err, b.setTotals(t))
}

// write writes a version, replacing one with the same number, and keeps the bounds.
func (b Book) write(id ID, l *Line, v Version, text []byte) error {
	sum := sha256.Sum256(text)
	t, err := b.totals()
	if err != nil {
		return err
	}
	if err := b.retain(l, &t, sum[:], text); err != nil { // before the old version is removed, which may have the same text
		return err
	}
	if err := b.remove(id, l, &t, v.Number); err != nil && !errors.Is(err, ErrMissing) {
		return err
	}
	v.Digest, v.Size = hex.EncodeToString(sum[:]), int64(len(text))
	size, err := put(b.Versions, id.versionKey(v.Number), v)
	if err != nil {
		return err
	}
	l.Last, l.Count, l.Bytes = max(l.Last, v.Number), l.Count+1, l.Bytes+size+v.Size
	l.Stored, t.Bytes = l.Stored+size, t.Bytes+size
	if err := b.trim(id, l, &t, b.Bounds.Versions, b.Bounds.Bytes); err != nil {
		return err
	}
	if _, err := put(b.Lines, id.Key(), l); err != nil {
		return err
	}
	return b.relieve(t)
}

// remove removes a version and updates its line and the totals, which the caller writes.
func (b Book) remove(id ID, l *Line, t *totals, number uint64) error {
	v, err := b.Version(id, number)
	if err != nil {
		return err
	}
	key := id.versionKey(number)
	data, err := b.Versions.Get(key)
	if err != nil {
		return err
	}
	size := int64(len(data))
	l.Count, l.Bytes, l.Stored, t.Bytes = l.Count-1, l.Bytes-size-v.Size, l.Stored-size, t.Bytes-size
	return errors.Join(b.Versions.Delete(key), b.release(l, t, v.Digest, v.Size))
}

// countKey is the key of the number of versions that have a text.
func countKey(digest []byte) []byte { return append(digest[:len(digest):len(digest)], 'n') }

// retain stores a text, or counts one more version that has it.
func (b Book) retain(l *Line, t *totals, digest, text []byte) error {
	n, err := b.count(digest)
	if err != nil {
		return err
	}
	if n == 0 {
		if err := b.Texts.Put(digest, text); err != nil {
			return err
		}
		l.Stored, t.Bytes = l.Stored+int64(len(text)), t.Bytes+int64(len(text))
	}
	if n == 0 {
		return nil
	}
	return b.putCount(digest, n+1)
}

// putCount writes the number of versions that have a text. It is only stored if there are several.
func (b Book) putCount(digest []byte, n uint64) error {
	if n == 1 {
		return b.Texts.Delete(countKey(digest))
	}
	return b.Texts.Put(countKey(digest), binary.BigEndian.AppendUint64(nil, n))
}

// release counts one version less, and removes the text with the last one.
func (b Book) release(l *Line, t *totals, digest string, size int64) error {
	key, err := hex.DecodeString(digest)
	if err != nil {
		return err
	}
	n, err := b.count(key)
	if err != nil {
		return err
	}
	if n > 1 {
		return b.putCount(key, n-1)
	}
	l.Stored, t.Bytes = l.Stored-size, t.Bytes-size
	return errors.Join(b.Texts.Delete(key), b.Texts.Delete(countKey(key)))
}

// count returns the number of versions that have a text.
func (b Book) count(digest []byte) (uint64, error) {
	if !b.Texts.Has(digest) {
		return 0, nil
	}
	data, err := b.Texts.Get(countKey(digest))
	if err != nil {
		return 0, err
	}
	if data == nil {
		return 1, nil
	}
	if len(data) != 8 {
		return 0, errors.New("the number of versions of a text is damaged")
	}
	return binary.BigEndian.Uint64(data), nil
}

// Import replaces a line by that of another history, followed by its own versions with higher numbers.
func (b Book) Import(from Book, id ID) error {
	l, known, err := from.Find(id)
	if err != nil || !known {
		return err
	}
	type full struct {
		Version
		text []byte
	}
	var versions []full
	read := func(of Book, above uint64) error {
		list, _, err := of.Latest(id, 0, 0)
		for _, v := range slices.Backward(list) {
			if v.Number <= above {
				continue
			}
			text, err := of.Text(v.Digest)
			if err != nil {
				return err
			}
			versions = append(versions, full{v, bytes.Clone(text)})
		}
		return err
	}
	if err := errors.Join(read(from, 0), read(b, l.Last)); err != nil {
		return err
	}
	if err := b.forget(id); err != nil {
		return err
	}
	l.Count, l.Bytes, l.Stored, l.Deleted = 0, 0, 0, time.Time{}
	for _, v := range versions {
		if v.Result == InForce {
			l.Current = max(l.Current, v.Number)
		}
		if err := b.write(id, &l, v.Version, v.text); err != nil {
			return err
		}
		if l, _, err = b.Find(id); err != nil { // the total bound may have removed versions of it
			return err
		}
	}
	return nil
}

// forget removes a line.
func (b Book) forget(id ID) error {
	l, known, err := b.Find(id)
	if err != nil || !known {
		return err
	}
	t, err := b.totals()
	if err != nil {
		return err
	}
	return errors.Join(b.drop(identified{id, l}, &t), b.setTotals(t))
}

// CheckText checks a document of [Book.Texts].
func CheckText(key, value []byte) error {
	switch {
	case len(key) == sha256.Size+1 && len(value) == 8:
		return nil
	case len(key) == sha256.Size && sha256.Sum256(value) == [sha256.Size]byte(key):
		return nil
	}
	return errors.New("a text of the history is at another's place")
}

// get decodes a document into v, and reports whether it exists.
func get(t document.Table, key []byte, v any) (known bool, err error) {
	data, err := t.Get(key)
	if err != nil || data == nil {
		return false, err
	}
	return true, document.DecodeOwn(data, v)
}

// put encodes and writes a document, and returns its size.
func put(t document.Table, key []byte, v any) (size int64, err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return int64(len(data)), t.Put(key, data)
}

func ignoreMissing(err error) error {
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}
