package store

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/document"
	"boxgate/store/layout"
	"boxgate/store/private"
)

// Keys has the API keys, and counts the objects that each has made.
type Keys struct {
	*file
	KeyEditor
}

// OperatorKey is the ID of the key in the file api-key, also after it has been replaced.
const OperatorKey = "operator"

// RoleAdmin is the role with all permissions. The store does not interpret any other role.
const RoleAdmin = "admin"

// APIKey is a key of the admin API. The key itself is not stored.
type APIKey struct {
	// ID stays the same when the key is replaced, and is never reused. Two records with the same ID are a key and its
	// predecessor within its grace.
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	// Role determines the permissions of the key; "" has no permissions.
	Role      string       `json:"role,omitempty"`
	Box       policy.BoxID `json:"box,omitempty"` // the only box that the key is for; "" for no such limit
	Hash      KeyHash      `json:"hash"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	LastUsed  time.Time    `json:"last_used,omitzero"`  // to the minute; zero: never
	// Quotas are its own quotas, by name. Records with the same ID have the same quotas.
	Quotas map[string]int64 `json:"quotas,omitempty"`
	// Model is its own limit of models, for all boxes that it has made.
	Model llm.Limit `json:"model,omitzero"`
	// SSHKeys log in to boxes over SSH with the permissions of the key. Records with the same ID have the same ones.
	SSHKeys []SSHKey `json:"ssh_keys,omitempty"`
	// Fleet: the key is one of the fleet, of which the store has a copy. It is stored in Role, so that versions which do not know such keys
	// grant them no permissions.
	Fleet bool `json:"-"`
}

// isOperators reports whether a record is that of the operator's key. It is stored without ID and role, as all keys were
// before named ones existed, so that older versions still understand a store without named keys.
func (k APIKey) isOperators() bool { return k.ID == "" && k.Role == "" }

// validAt reports whether the key is valid at that time.
func (k APIKey) validAt(now time.Time) bool { return k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt) }

// KeyHash is the SHA-256 of a key made by [NewKey]. A slow password hash has no benefit: such a key has 256 random
// bits, so dictionary attacks are impossible, while a slow hash could be used to keep the gateway busy. It must not be
// used for passwords chosen by people.
type KeyHash [sha256.Size]byte

// NewKey makes a random key of 256 bits, in characters that need no quoting in a header or a URL.
func NewKey() name.Secret {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the process instead
	return name.NewSecret(base64.RawURLEncoding.EncodeToString(b[:]))
}

// HashKey returns the hash that a key is stored under.
func HashKey(key string) KeyHash { return sha256.Sum256([]byte(key)) }

// Matches reports whether h is the hash of key. It takes the same time for every wrong key.
func (h KeyHash) Matches(key string) bool {
	got := HashKey(key)
	return subtle.ConstantTimeCompare(h[:], got[:]) == 1
}

// MarshalText implements [encoding.TextMarshaler].
func (h KeyHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *KeyHash) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(h) {
		return fmt.Errorf("a key hash is %d hexadecimal digits", 2*len(h))
	}
	copy(h[:], b)
	return nil
}

// Add stores the hash of an operator's key. The key must be made by [NewKey].
func (db Keys) Add(name string, key name.Secret) error {
	return db.change(func(keys keyTable) error {
		return putKey(keys, APIKey{ID: OperatorKey, Name: name, Hash: HashKey(key.Reveal()), CreatedAt: time.Now().UTC()})
	})
}

// change changes the records of the keys in one transaction.
func (db Keys) change(change func(keyTable) error) error {
	return db.update(func(tx *transaction) error {
		keys, err := tx.table(layout.APIKeys)
		if err != nil {
			return err
		}
		return change(keys)
	})
}

// Check reports whether key is a valid API key, like [Keys.Find].
func (db Keys) Check(key string) bool {
	_, ok := db.Find(key)
	return ok
}

// Find returns the record of a currently valid key. It looks up a hash, so its duration reveals no information
// about existing keys. If the store cannot be read, no key is valid.
func (db Keys) Find(key string) (APIKey, bool) { return db.FindHash(HashKey(key)) }

// FindHash is [Keys.Find] for a program that has kept the hash of a key.
func (db Keys) FindHash(hash KeyHash) (APIKey, bool) {
	var found APIKey
	known := false
	err := db.view(func(tx *transaction) error {
		data, err := tx.get(layout.APIKeys, hash[:])
		if data == nil {
			return err
		}
		if found, err = readKey(data); err != nil {
			return err
		}
		known = found.Hash == hash && found.validAt(time.Now())
		return nil
	})
	if err != nil || !known {
		return APIKey{}, false
	}
	return found, true
}

// All returns the records of the API keys, with their latest uses.
func (db Keys) All() ([]APIKey, error) {
	var out []APIKey
	err := db.view(func(tx *transaction) error {
		keys, err := tx.table(layout.APIKeys)
		if err != nil {
			return err
		}
		out, err = readKeys(keys)
		return err
	})
	for i, k := range out {
		if at, used := db.keyUses.of(k.Hash); used {
			out[i].LastUsed = at
		}
	}
	return out, err
}

func readKeys(keys keyTable) (out []APIKey, err error) {
	err = keys.Each(nil, func(_, data []byte) error {
		k, err := readKey(data)
		out = append(out, k)
		return err
	})
	return out, err
}

func readKey(data []byte) (APIKey, error) {
	var k APIKey
	if err := document.Decode(data, &k); err != nil {
		return APIKey{}, fmt.Errorf("the record of an API key is damaged: %w", err)
	}
	if k.isOperators() {
		k.ID, k.Name, k.Role = OperatorKey, OperatorKey, RoleAdmin
	}
	k.Role, k.Fleet = strings.CutPrefix(k.Role, fleetRole)
	return k, nil
}

// putKey stores the record of a key.
func putKey(keys keyTable, k APIKey) error {
	if k.ID == OperatorKey {
		k.ID, k.Role = "", ""
	}
	if k.Fleet {
		k.Role = fleetRole + k.Role
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return keys.Put(k.Hash[:], data)
}

// maxAPIKeys bounds the number of API keys.
const maxAPIKeys = 1000

// Create makes a key with the name, role, box, expiry and quotas of like, and returns it with its record. The key
// itself is not stored. The error is [ErrKeyNameTaken] if another key has the name, and [ErrManyKeys] if there are too
// many keys.
func (e KeyEditor) Create(like APIKey) (name.Secret, APIKey, error) {
	key, now := NewKey(), time.Now().UTC()
	fresh := APIKey{
		ID: newKeyID(), Fleet: e.fleet, Name: like.Name, Role: like.Role, Box: like.Box, ExpiresAt: like.ExpiresAt, Quotas: like.Quotas, Model: like.Model,
		Hash: HashKey(key.Reveal()), CreatedAt: now,
	}
	err := e.change(func(keys keyTable) error {
		all, err := readKeys(keys)
		switch {
		case err != nil:
			return err
		case fresh.Name == OperatorKey || slices.ContainsFunc(all, func(k APIKey) bool { return k.Name == fresh.Name }):
			return ErrKeyNameTaken
		case len(all) >= maxAPIKeys:
			return ErrManyKeys
		}
		return putKey(keys, fresh)
	})
	if err != nil {
		return name.Secret{}, APIKey{}, err
	}
	return key, fresh, nil
}

// keyIDPrefix begins the ID of each key but the operator's.
const keyIDPrefix = "key_"

// newKeyID returns a unique ID, which is never reused.
func newKeyID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return keyIDPrefix + hex.EncodeToString(b[:])
}

// Replace gives the key of that ID a new value, and returns it. The old one stops working immediately, or after
// grace if that is more than 0; name, role, box, expiry and quotas stay. The error is [ErrNotFound] if the key does not
// exist or has expired.
func (e KeyEditor) Replace(id string, grace time.Duration) (name.Secret, APIKey, error) {
	key, now := NewKey(), time.Now().UTC()
	var fresh APIKey
	err := e.change(func(keys keyTable) error {
		fresh = APIKey{} // of an earlier attempt
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID == id && k.validAt(now) && !k.CreatedAt.Before(fresh.CreatedAt) {
				fresh = k
			}
		}
		if fresh.ID == "" || id == OperatorKey { // RotateAPIKey replaces the operator's, which also has a file
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		fresh.Hash, fresh.CreatedAt, fresh.LastUsed = HashKey(key.Reveal()), now, time.Time{}
		return replaceKeys(keys, fresh, now.Add(grace))
	})
	if err != nil {
		return name.Secret{}, APIKey{}, err
	}
	return key, fresh, nil
}

// SetQuotas sets or removes the quotas and the limit of models of the key of that ID, and returns its latest record. The error is
// [ErrNotFound] if the key does not exist.
func (e KeyEditor) SetQuotas(id string, quotas map[string]int64, model llm.Limit) (latest APIKey, err error) {
	return e.ChangeQuotas(id, func(APIKey) (map[string]int64, llm.Limit) { return quotas, model })
}

// ChangeQuotas is [KeyEditor.SetQuotas] with the quotas and the limit that set returns for a record of the key.
func (e KeyEditor) ChangeQuotas(id string, set func(APIKey) (map[string]int64, llm.Limit)) (latest APIKey, err error) {
	err = e.change(func(keys keyTable) error {
		latest = APIKey{} // of an earlier attempt
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			if k.ID != id {
				continue
			}
			k.Quotas, k.Model = set(k)
			if err := putKey(keys, k); err != nil {
				return err
			}
			if latest.ID == "" || latest.CreatedAt.Before(k.CreatedAt) {
				latest = k
			}
		}
		if latest.ID == "" {
			return fmt.Errorf("API key: %w", ErrNotFound)
		}
		return nil
	})
	return latest, err
}

// Delete deletes the key of that ID, which stops working immediately, including values within their grace, with its secrets. Its own limits
// stay for its boxes and URLs ([Keys.Revoked]). The error is [ErrNotFound] if the key does not exist. The operator's key
// cannot be deleted, only replaced.
func (db Keys) Delete(id string) error {
	if id == OperatorKey {
		return fmt.Errorf("the operator's API key: %w", ErrNotFound)
	}
	n, err := db.deleteWhere(func(k APIKey) bool { return k.ID == id })
	if err == nil && n == 0 {
		err = fmt.Errorf("API key: %w", ErrNotFound)
	}
	return err
}

// Remove deletes the records of the key of that ID. Unlike [Keys.Delete] it keeps no limits. The error is [ErrNotFound] if the key does not
// exist.
func (e KeyEditor) Remove(id string) error {
	return e.change(func(keys keyTable) error {
		all, err := readKeys(keys)
		found := slices.DeleteFunc(all, func(k APIKey) bool { return k.ID != id || id == OperatorKey })
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("API key: %w", ErrNotFound)
		}
		for _, k := range found {
			err = errors.Join(err, keys.Delete(k.Hash[:]))
		}
		return err
	})
}

// deleteWhere deletes keys, and returns how many. Their secrets are deleted with them. Their own limits stay in the store ([Keys.Revoked]).
func (db Keys) deleteWhere(which func(APIKey) bool) (deleted int, err error) {
	err = db.update(func(tx *transaction) error {
		keys, err := tx.table(layout.APIKeys)
		if err != nil {
			return err
		}
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		found := slices.DeleteFunc(all, func(k APIKey) bool { return !which(k) })
		for _, k := range found {
			if err := keys.Delete(k.Hash[:]); err != nil {
				return err
			}
		}
		deleted = len(found)
		if _, err := deleteKeySecrets(tx, time.Now()); err != nil {
			return err
		}
		return keepLimits(tx, found, time.Now().UTC())
	})
	return deleted, err
}

// NoteUse records in memory that a key was used now, to the minute. [Keys.SaveUses] stores it.
func (db Keys) NoteUse(k APIKey) {
	if now := time.Now().UTC().Truncate(time.Minute); now.After(k.LastUsed) {
		db.keyUses.add(k.Hash, now)
	}
}

// SaveUses stores the latest uses of keys in one transaction. Without uses it does not write.
func (db Keys) SaveUses() error {
	uses := db.keyUses.takeAll()
	if len(uses) == 0 {
		return nil
	}
	err := db.change(func(keys keyTable) error {
		all, err := readKeys(keys)
		if err != nil {
			return err
		}
		for _, k := range all {
			at, used := uses[k.Hash]
			if !used {
				continue
			}
			k.LastUsed = at
			if err := putKey(keys, k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.keyUses.restore(uses)
	}
	return err
}

// keyUses are the latest uses of API keys that are not stored yet. The zero value is empty. Safe for concurrent use.
type keyUses struct {
	mu     sync.Mutex
	latest map[KeyHash]time.Time
}

// add adds a use.
func (u *keyUses) add(key KeyHash, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.latest == nil {
		u.latest = map[KeyHash]time.Time{}
	}
	u.latest[key] = at
}

// of returns the use of a key that is not stored yet, if any.
func (u *keyUses) of(key KeyHash) (time.Time, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, ok := u.latest[key]
	return at, ok
}

// takeAll returns and removes all uses, to be stored.
func (u *keyUses) takeAll() map[KeyHash]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.latest
	u.latest = nil
	return all
}

// restore adds uses that could not be stored, except for keys used since.
func (u *keyUses) restore(uses map[KeyHash]time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.Copy(uses, u.latest)
	u.latest = uses
}

// Ensure makes the first API key, once: it writes the key into the file api-key of the state directory (0600) and
// stores its hash. It reports whether it did. The file comes first, so that a crash in between leaves a key that does
// not work, and the next start makes another. While the store has any key the file is not touched: if it was deleted,
// that was intended.
func (db Keys) Ensure() (made bool, err error) {
	if err := db.finishKeyChange(); err != nil {
		return false, err
	}
	keys, err := db.All()
	if err != nil || len(keys) > 0 {
		return false, err
	}
	key := NewKey()
	if err := private.Write(filepath.Join(db.dir, layout.FileAPIKey), []byte(key.Reveal()+"\n")); err != nil {
		return false, fmt.Errorf("the API key cannot be written: %w", err)
	}
	return true, db.Add("first", key)
}

// Rotate makes a new operator's key and writes it into the file api-key of the state directory. The previous one
// stops working immediately, or after grace if that is more than 0. Named keys stay.
//
// The new key is written to a file next to api-key before the store has it, and renamed to api-key afterwards. If the
// gateway dies in between, one of the two keys works, and the next start completes the change if the store has the new
// key ([Keys.Ensure]).
func (db Keys) Rotate(grace time.Duration) error {
	db.rotating.Lock()
	defer db.rotating.Unlock()
	key := NewKey()
	if err := private.Write(db.path(layout.FileNextKey), []byte(key.Reveal()+"\n")); err != nil {
		return fmt.Errorf("the new API key cannot be written: %w", err)
	}
	if err := db.reportStep("new API key in a file beside"); err != nil {
		return err
	}
	now := time.Now().UTC()
	fresh := APIKey{ID: OperatorKey, Name: "rotated", Hash: HashKey(key.Reveal()), CreatedAt: now}
	if err := db.change(func(keys keyTable) error { return replaceKeys(keys, fresh, now.Add(grace)) }); err != nil {
		return errors.Join(err, os.Remove(db.path(layout.FileNextKey)))
	}
	if err := db.reportStep("new API key in force"); err != nil {
		return err
	}
	if err := db.finishKeyChange(); err != nil {
		return fmt.Errorf("the new API key is valid, but still in the file %s, until the next start: %w", layout.FileNextKey, err)
	}
	return db.reportStep("new API key in its file")
}

// replaceKeys adds a key and makes earlier keys with its ID expire at a given time. Earlier expiries stay, and expired
// keys are deleted.
func replaceKeys(keys keyTable, fresh APIKey, end time.Time) error {
	old, err := readKeys(keys)
	if err != nil {
		return err
	}
	for _, k := range old {
		if k.ID != fresh.ID {
			continue
		}
		if k.ExpiresAt.IsZero() || end.Before(k.ExpiresAt) {
			k.ExpiresAt = end
		}
		if !k.validAt(fresh.CreatedAt) {
			err = errors.Join(err, keys.Delete(k.Hash[:]))
			continue
		}
		err = errors.Join(err, putKey(keys, k))
	}
	return errors.Join(err, putKey(keys, fresh))
}

// finishKeyChange completes a change of the API key: the file with the new one is renamed if the store has the key,
// else removed.
func (db Keys) finishKeyChange() error {
	next := db.path(layout.FileNextKey)
	data, err := os.ReadFile(next)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer clear(data)
	if !db.Check(strings.TrimSpace(string(data))) {
		return os.Remove(next)
	}
	return errors.Join(os.Rename(next, db.path(layout.FileAPIKey)), private.SyncDir(db.dir))
}

// Holdings are the stored objects of one API key.
type Holdings struct {
	URLs      int64 // public URLs
	Domains   int64 // host names of public URLs, served or pending
	Snapshots int64
	Schedules int64
	Secrets   int64 // that it has stored
}

func (h Holdings) plus(sign int64, more Holdings) Holdings {
	h.URLs += sign * more.URLs
	h.Domains += sign * more.Domains
	h.Snapshots += sign * more.Snapshots
	h.Schedules += sign * more.Schedules
	h.Secrets += sign * more.Secrets
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
		countPorts(tx, add),
		countKeySecrets(tx, add),
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
