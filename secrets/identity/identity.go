// Package identity signs short-lived tokens that identify the box of a request, for the operator's proxies to which
// requests are forwarded, and publishes the keys to verify them.
package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/secrets/assertion"
)

const (
	tokenLifetime  = 30 * time.Second // of a token from now on; it is backdated by half a minute
	rotationPeriod = 24 * time.Hour   // interval of new keys
	publishAhead   = time.Hour        // how long a key is published before it signs
	publishAfter   = 10 * time.Minute // how long a key is published after its last use
	maxKeys        = 8                // bound in case the clock jumps
	overdue        = publishAhead     // how long the store may fail to save a new key
)

// Memory keeps the keys across restarts, sealed. Safe for concurrent use.
type Memory interface {
	// IdentityKeys returns the text last set, initially the zero value.
	IdentityKeys() (name.Secret, error)
	// SetIdentityKeys replaces the stored text.
	SetIdentityKeys(name.Secret) error
}

// Issuer signs tokens. Create it with [New]. Safe for concurrent use.
type Issuer struct {
	name   string
	memory Memory
	now    func() time.Time

	keys atomic.Pointer[[]key] // oldest first, replaced as a whole; nil until loaded

	rotating sync.Mutex // held while the store is read or written
}

// key is one signing key.
type key struct {
	id     string
	since  time.Time
	text   name.Secret // PEM
	signer *assertion.Signer
	public jose.JSONWebKey
}

// New returns an issuer of tokens with the given iss claim.
func New(name string, memory Memory, now func() time.Time) *Issuer {
	return &Issuer{name: name, memory: memory, now: now}
}

// Token returns a token, valid for half a minute, which attests to an audience that a request for a host comes from a
// box. It waits for the store only if there is no key yet, or the keys are overdue; otherwise at most one caller at a
// time waits.
func (i *Issuer) Token(box policy.BoxID, audience, host string) (name.Secret, error) {
	now := i.now()
	keys, err := i.usableKeys(now)
	if err != nil {
		return name.Secret{}, err
	}
	claims := assertion.Claims{
		Issuer: i.name, Subject: string(box), Audience: audience, Lifetime: tokenLifetime,
		More: map[string]any{"host": host, "sandbox_id": string(box)},
	}
	return keys[signingIndex(keys, now)].signer.Sign(claims, now)
}

// KeySet returns the public keys as a JSON Web Key Set.
func (i *Issuer) KeySet() (json.RawMessage, error) {
	keys, err := i.usableKeys(i.now())
	if err != nil {
		return nil, err
	}
	var set jose.JSONWebKeySet
	for _, k := range keys {
		set.Keys = append(set.Keys, k.public)
	}
	return json.Marshal(set)
}

// usableKeys returns the keys, at least one. While the store is slow or fails, it returns the previous keys for up to
// overdue.
func (i *Issuer) usableKeys(now time.Time) ([]key, error) {
	known := i.keys.Load()
	if known == nil || isDue(*known, now.Add(-overdue)) {
		return i.rotatedKeys(now)
	}
	if i.rotating.TryLock() {
		defer i.rotating.Unlock()
		_ = i.rotateLocked(now) // retried with the next token; its error counts only once the keys are overdue
	}
	return *i.keys.Load(), nil
}

// rotatedKeys returns the keys after any due rotation.
func (i *Issuer) rotatedKeys(now time.Time) ([]key, error) {
	i.rotating.Lock()
	defer i.rotating.Unlock()
	if err := i.rotateLocked(now); err != nil {
		return nil, err
	}
	return *i.keys.Load(), nil
}

// isDue reports whether it is time for a new key.
func isDue(keys []key, now time.Time) bool {
	n := len(keys)
	return n == 0 || !now.Before(keys[n-1].since.Add(rotationPeriod))
}

// signingIndex returns the index of the key that signs: the newest that has been published for long enough, else the
// oldest.
func signingIndex(keys []key, now time.Time) int {
	for n, k := range slices.Backward(keys) {
		if !now.Before(k.since.Add(publishAhead)) {
			return n
		}
	}
	return 0
}

// rotateLocked loads the keys, makes a new one when it is due, and drops those no longer needed. Changes are stored
// before they take effect.
func (i *Issuer) rotateLocked(now time.Time) error {
	known := i.keys.Load()
	if known == nil {
		kept, err := i.loadKeys()
		if err != nil {
			return err
		}
		known = &kept
	}
	keys := slices.Clone(*known)
	if isDue(keys, now) {
		k, err := newKey(now)
		if err != nil {
			return err
		}
		keys = append(keys, k)
	}
	for n := signingIndex(keys, now); n > 0 && !now.Before(keys[n].since.Add(publishAhead+publishAfter)) || len(keys) > maxKeys; n-- {
		keys = keys[1:]
	}
	if old := *known; len(keys) != len(old) || keys[0].id != old[0].id {
		if err := i.storeKeys(keys); err != nil {
			return err
		}
	}
	i.keys.Store(&keys)
	return nil
}

// record is the stored form of a key.
type record struct {
	Since time.Time `json:"since"`
	Key   string    `json:"key"`
}

var errDamaged = errors.New("the identity keys in the store are damaged")

func (i *Issuer) loadKeys() ([]key, error) {
	text, err := i.memory.IdentityKeys()
	if err != nil {
		return nil, fmt.Errorf("the identity keys cannot be read: %w", err)
	}
	var records []record
	if text.Reveal() != "" && json.Unmarshal([]byte(text.Reveal()), &records) != nil {
		return nil, errDamaged
	}
	keys := make([]key, 0, len(records)+1)
	for _, r := range records {
		k, err := parseKey(name.NewSecret(r.Key), r.Since)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

func (i *Issuer) storeKeys(keys []key) error {
	records := make([]record, 0, len(keys))
	for _, k := range keys {
		records = append(records, record{k.since, k.text.Reveal()})
	}
	text, err := json.Marshal(records)
	if err != nil {
		return err
	}
	if err := i.memory.SetIdentityKeys(name.NewSecret(string(text))); err != nil {
		return fmt.Errorf("the identity keys cannot be kept: %w", err)
	}
	return nil
}

func newKey(now time.Time) (key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return key{}, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return key{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return parseKey(name.NewSecret(string(text)), now.UTC().Truncate(time.Second))
}

// parseKey parses a key. Its ID is the beginning of its thumbprint (RFC 7638).
func parseKey(text name.Secret, since time.Time) (key, error) {
	block, _ := pem.Decode([]byte(text.Reveal()))
	if block == nil {
		return key{}, errDamaged
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	private, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok || private.Curve != elliptic.P256() {
		return key{}, errDamaged
	}
	public := jose.JSONWebKey{Key: private.Public(), Algorithm: string(jose.ES256), Use: "sig"}
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return key{}, errDamaged
	}
	public.KeyID = hex.EncodeToString(sum[:8])
	signer, err := assertion.Parse(text, public.KeyID)
	return key{public.KeyID, since, text, signer, public}, err
}
