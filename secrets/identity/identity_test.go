package identity

import (
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/policy/name"
)

// memory is a store in memory, which may fail.
type memory struct {
	mu     sync.Mutex
	text   name.Secret
	broken error
}

func (m *memory) IdentityKeys() (name.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text, m.broken
}

func (m *memory) SetIdentityKeys(text name.Secret) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken == nil {
		m.text = text
	}
	return m.broken
}

// verify checks a token as a proxy would, and returns its claims and the ID of its key.
func verify(t *testing.T, i *Issuer, token name.Secret, now time.Time) (claims map[string]any, kid string) {
	t.Helper()
	text, err := i.KeySet()
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(text, &set); err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token.Reveal(), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	kid = parsed.Headers[0].KeyID
	for _, k := range set.Keys {
		if _, ok := k.Key.(*ecdsa.PublicKey); !ok {
			t.Fatalf("a key of type %T is published", k.Key)
		}
	}
	var standard jwt.Claims
	if len(set.Key(kid)) != 1 {
		t.Fatalf("no key %q in %s", kid, text)
	}
	if err := parsed.Claims(set.Key(kid)[0].Key, &standard, &claims); err != nil {
		t.Fatal(err)
	}
	if err := standard.ValidateWithLeeway(jwt.Expected{Issuer: "urn:test", AnyAudience: jwt.Audience{"https://proxy.test/in"}, Time: now}, 0); err != nil {
		t.Fatal(err)
	}
	if life := standard.Expiry.Time().Sub(standard.IssuedAt.Time()); life > time.Minute || standard.ID == "" {
		t.Errorf("valid for %v, ID %q", life, standard.ID)
	}
	return claims, kid
}

// TestTokens checks a token's claims and lifetime, and that tokens are unique.
func TestTokens(t *testing.T) {
	t.Parallel()
	now := time.Now()
	i := New("urn:test", &memory{}, func() time.Time { return now })
	first, err := i.Token("box1", "https://proxy.test/in", "api.test")
	if err != nil {
		t.Fatal(err)
	}
	claims, _ := verify(t, i, first, now)
	if claims["sub"] != "box1" || claims["host"] != "api.test" || claims["sandbox_id"] != "box1" {
		t.Errorf("%v", claims)
	}
	if second, err := i.Token("box1", "https://proxy.test/in", "api.test"); err != nil || second.Equal(first) {
		t.Errorf("the same token again, %v", err)
	}
}

// TestKeysRotate checks that a new key is published before it signs, and an old one after it has signed; that all
// survive a restart; and that a clock that jumps back or far ahead does no harm.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	kept := &memory{}
	restart := func() *Issuer { return New("urn:test", kept, func() time.Time { return now }) }
	i := restart()
	signer := func() string {
		t.Helper()
		token, err := i.Token("b", "https://proxy.test/in", "api.test")
		if err != nil {
			t.Fatal(err)
		}
		_, kid := verify(t, i, token, now)
		return kid
	}
	count := func() int { return len(*i.keys.Load()) }
	first := signer()
	i = restart()
	if signer() != first || count() != 1 {
		t.Error("a restart changes the key")
	}
	now = now.Add(rotationPeriod)
	if signer() != first || count() != 2 {
		t.Error("a key signs as soon as it is published")
	}
	now = now.Add(publishAhead)
	second := signer()
	if second == first || count() != 2 {
		t.Error("the new key does not sign, or the old one is gone at once")
	}
	now = now.Add(publishAfter)
	if signer() != second || count() != 1 {
		t.Errorf("%d keys", count())
	}
	for range 50 {
		now = now.Add(7 * rotationPeriod)
		signer()
		i = restart()
	}
	if now = now.Add(-20 * rotationPeriod); signer() == "" || count() > maxKeys {
		t.Errorf("%d keys", count())
	}
}

// TestStoreFails checks that no token is signed while the keys cannot be stored.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	for label, m := range map[string]*memory{
		"broken": {broken: errors.New("no disk")}, "damaged": {text: name.NewSecret("canary")},
		"damaged key": {text: name.NewSecret(`[{"key": "canary"}]`)},
	} {
		i := New("urn:test", m, time.Now)
		if token, err := i.Token("b", "https://proxy.test", "api.test"); err == nil || token.Reveal() != "" {
			t.Errorf("%s: a token", label)
		}
		if set, err := i.KeySet(); err == nil {
			t.Errorf("%s: %s", label, set)
		}
	}
}

// held is a store whose writes the test delays.
type held struct {
	memory
	writes, goOn chan struct{}
}

func (h *held) SetIdentityKeys(text name.Secret) error {
	h.writes <- struct{}{}
	<-h.goOn
	return h.memory.SetIdentityKeys(text)
}

// TestSlowStoreHoldsOneRequest checks that while a new key is stored, the other requests use the previous one.
func TestSlowStoreHoldsOneRequest(t *testing.T) {
	t.Parallel()
	now := time.Now()
	store := &held{writes: make(chan struct{}, 1), goOn: make(chan struct{}, 1)}
	i := New("urn:test", store, func() time.Time { return now })
	token := func() (string, error) {
		token, err := i.Token("b", "https://proxy.test/in", "api.test")
		return token.Reveal(), err
	}
	store.goOn <- struct{}{}
	if _, err := token(); err != nil {
		t.Fatal(err)
	}
	<-store.writes
	now = now.Add(rotationPeriod)
	slow := make(chan error, 1)
	go func() {
		_, err := token()
		slow <- err
	}()
	<-store.writes
	others := make(chan error, 2)
	go func() {
		_, err := token()
		others <- err
		_, err = i.KeySet()
		others <- err
	}()
	for range 2 {
		select {
		case err := <-others:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a request waits for the disk")
		}
	}
	store.goOn <- struct{}{}
	if err := <-slow; err != nil || len(*i.keys.Load()) != 2 {
		t.Errorf("%d keys, %v", len(*i.keys.Load()), err)
	}
}

// TestStoreFailsLater checks that a failing store blocks no request at first, and that overdue keys do not sign.
func TestStoreFailsLater(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	store := &memory{}
	i := New("urn:test", store, func() time.Time { return now })
	token := func() error {
		_, err := i.Token("b", "https://proxy.test/in", "api.test")
		return err
	}
	if err := token(); err != nil {
		t.Fatal(err)
	}
	store.broken = errors.New("no disk")
	for _, step := range []struct {
		after time.Duration
		fails bool
	}{{rotationPeriod, false}, {overdue - time.Second, false}, {time.Second, true}, {-time.Second, false}} {
		now = now.Add(step.after)
		if err := token(); (err != nil) != step.fails {
			t.Errorf("after %v more: %v", step.after, err)
		}
	}
	store.broken = nil
	if err := token(); err != nil || len(*i.keys.Load()) != 2 {
		t.Errorf("%d keys, %v", len(*i.keys.Load()), err)
	}
}
