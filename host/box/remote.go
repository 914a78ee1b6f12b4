package box

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"time"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/remote"
	"boxgate/store"
)

// The lists of steps of remote boxes, which have no network namespace.
var (
	attachRemoteSteps = []step{
		(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).addAuthority, (*provisioning).connect, (*provisioning).storeIdle,
	}
	recoverRemoteSteps = []step{(*provisioning).compile, (*provisioning).addAuthority, (*provisioning).findURLs}
)

// attachRemote makes the box of a sandbox elsewhere. It has no token yet.
func (l *Service) attachRemote(ctx context.Context, req api.AttachRequest) (api.Box, error) {
	if l.cfg.Remote.Listen == "" {
		return api.Box{}, api.Errorf(api.ErrConflict, "this gateway has no listener for sandboxes elsewhere: set remote.listen and remote.tls")
	}
	b, err := l.admit(ctx, api.CreateRequest{Name: req.Name, Labels: req.Labels, Source: req.Source, Limits: req.Limits, Policy: req.Policy, Named: req.Named, Headers: req.Headers},
		&store.Attached{Kind: api.AttachRemote, Stack: api.StackGuest}, origin{})
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	if err := l.provision(ctx, &provisioning{box: b}, attachRemoteSteps); err != nil {
		return api.Box{}, l.discard(b, err)
	}
	b.Follow("")
	return b.ViewWithWarnings(), nil
}

// errNotRemote refuses to make tokens for other boxes.
func errNotRemote(id policy.BoxID) error {
	return api.Errorf(api.ErrConflict, "box %s does not run elsewhere: only boxes of `gateway box attach --remote` have a token", id)
}

// RotateToken implements the Host of [boxgate/api/boxes].
func (l *Service) RotateToken(_ context.Context, id policy.BoxID, lifetime time.Duration) (api.RemoteToken, error) {
	token, next := newToken(time.Now(), lifetime)
	if err := l.setToken(id, next); err != nil {
		return api.RemoteToken{}, err
	}
	return api.RemoteToken{Token: token, Expires: next.ExpiresAt, Listen: l.cfg.Remote.Listen}, nil
}

// newToken makes a token that is valid for a time from now on. Its end is a time of the wall clock, in whole seconds as the API shows it:
// the monotonic clock stands still while the host is suspended.
func newToken(now time.Time, lifetime time.Duration) (string, *store.RemoteToken) {
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	token := tokenPrefix + hex.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(token))
	return token, &store.RemoteToken{Hash: sum[:], CreatedAt: now, ExpiresAt: now.Add(lifetime).Truncate(time.Second)}
}

// RevokeToken implements the Host of [boxgate/api/boxes].
func (l *Service) RevokeToken(_ context.Context, id policy.BoxID) error { return l.setToken(id, nil) }

// setToken replaces the token of a remote box, and cuts the connections that the old one opened.
func (l *Service) setToken(id policy.BoxID, next *store.RemoteToken) error {
	b, err := l.boxes.Lock(id)
	if err != nil {
		return err
	}
	defer b.Unlock()
	if !b.IsRemote() {
		return errNotRemote(id)
	}
	record := b.Record
	attached := *record.Attached
	attached.Token = next
	record.Attached, record.UpdatedAt = &attached, time.Now()
	if err := l.records.Update(record); err != nil {
		return change.NotStored(l.log, "the token could not be stored, the previous one stays valid", err)
	}
	b.Record = record
	b.Publish()
	l.cutRemote(id)
	return nil
}

// tokenPrefix begins each token, so that programs that look for secrets can find them.
const tokenPrefix = "bgr_"

// Tokens checks the tokens of remote boxes. It implements the Tokens of [boxgate/remote]. Safe for concurrent use.
type Tokens struct{ boxes *state.Table }

// NewTokens returns a Tokens.
func NewTokens(boxes *state.Table) Tokens { return Tokens{boxes} }

// The reasons why a token is refused.
var (
	errWrongToken   = errors.New("wrong token, or no such remote box")
	errExpiredToken = errors.New("expired token")
)

// Open implements the Tokens of [boxgate/remote]. A process that was replaced may still know a token that its successor has replaced, but
// not the policy of that box any longer: see [Service.RotateToken].
func (t Tokens) Open(id, token string) (remote.Access, error) {
	sum := sha256.Sum256([]byte(token))
	b, err := t.boxes.Find(policy.BoxID(id))
	if err != nil {
		return remote.Access{}, errWrongToken
	}
	valid := b.Token.Load()
	switch {
	case valid == nil || !b.IsRemote() || subtle.ConstantTimeCompare(valid.Hash, sum[:]) != 1:
		return remote.Access{}, errWrongToken
	case !time.Now().Before(valid.ExpiresAt):
		return remote.Access{}, errExpiredToken
	}
	return remote.Access{Box: &b.Box, Expires: valid.ExpiresAt}, nil
}
