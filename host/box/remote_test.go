package box

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

// A token ends at the second that the API shows, also on a host that was suspended meanwhile.
func TestTokensEndByTheWallClock(t *testing.T) {
	t.Parallel()
	now := time.Now()
	text, next := newToken(now, time.Hour)
	if sum := sha256.Sum256([]byte(text)); !bytes.Equal(next.Hash, sum[:]) || len(text) != len(tokenPrefix)+64 {
		t.Errorf("%q, %x", text, next.Hash)
	}
	if end := next.ExpiresAt; end != end.Round(0) || end != time.Unix(end.Unix(), 0) || now.Add(time.Hour).Sub(end) >= time.Second {
		t.Errorf("ends at %v", end)
	}
}

// A token opens its own remote box until it expires, is replaced or is revoked, and no other box.
func TestTokens(t *testing.T) {
	t.Parallel()
	tokenOf := func(text string, expires time.Time) *store.RemoteToken {
		sum := sha256.Sum256([]byte(text))
		return &store.RemoteToken{Hash: sum[:], ExpiresAt: expires}
	}
	later, table := time.Now().Add(time.Hour), &state.Table{}
	add := func(id policy.BoxID, attached *store.Attached) *state.Box {
		b := state.NewBox(store.Box{ID: id, Attached: attached}, store.Policy{}, store.Headers{}, api.Hosted{}, 0)
		table.Add(b)
		return b
	}
	one := add("one", &store.Attached{Kind: api.AttachRemote, Token: tokenOf("bgr_one", later)})
	add("two", &store.Attached{Kind: api.AttachRemote, Token: tokenOf("bgr_two", later)})
	add("expired", &store.Attached{Kind: api.AttachRemote, Token: tokenOf("bgr_expired", time.Now())})
	add("none", &store.Attached{Kind: api.AttachRemote})
	add("local", &store.Attached{Kind: api.AttachNetNS, Token: tokenOf("bgr_local", later)})
	add("launched", nil)
	tokens := NewTokens(table)
	opens := func(id, token string, want error) {
		t.Helper()
		a, err := tokens.Open(id, token)
		if !errors.Is(err, want) || (err == nil) != (a.Box != nil) {
			t.Errorf("%s with %q: %v, %v, want %v", id, token, a, err, want)
		}
	}
	if a, err := tokens.Open("one", "bgr_one"); err != nil || a.Box != &one.Box || !a.Expires.Equal(later) {
		t.Errorf("%v, %v", a, err)
	}
	for _, id := range []string{"two", "none", "local", "launched", "gone", ""} {
		opens(id, "bgr_one", errWrongToken)
		opens(id, "", errWrongToken)
	}
	opens("local", "bgr_local", errWrongToken)
	opens("expired", "bgr_expired", errExpiredToken)
	opens("expired", "bgr_one", errWrongToken)
	one.Lock()
	one.Record.Attached.Token = tokenOf("bgr_new", later)
	one.Publish()
	one.Unlock()
	opens("one", "bgr_one", errWrongToken)
	opens("one", "bgr_new", nil)
	one.Lock()
	one.Deleting = true // the record has its token until the box is gone
	one.Publish()
	one.Unlock()
	opens("one", "bgr_new", errWrongToken)
	one.Lock()
	one.Deleting, one.Record.Attached.Token = false, nil
	one.Publish()
	one.Unlock()
	opens("one", "bgr_new", errWrongToken)
}
