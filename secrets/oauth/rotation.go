package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"boxgate/internal/fault"
	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// rotation is the sealed state of refresh tokens that replace one another.
type rotation struct {
	// Seed is the digest of the configured token. When the operator configures another one, the tokens are discarded.
	Seed string `json:"seed"`
	// Tokens are the refresh tokens, newest first: the latest, and the one before it until the latest has been used. A
	// server that does not know that its answer arrived may still expect the previous one.
	Tokens []string `json:"tokens"`
}

// refresh gets an access token with a refresh token. A new refresh token in the answer is on disk before the access
// token is used, and before the old one is dropped.
//
//  1. The tokens are read: the stored ones, or the configured one.
//  2. The newest is presented; if the server refuses it, the previous one.
//  3. The tokens for the next time are sealed on disk.
//
// A crash before step 3 leaves the old token, which a server accepts if it allows for lost answers. After step 3 the
// new one is stored as well.
func (o *OAuth2) refresh(ctx context.Context, d remote.Env) (remote.Value, error) {
	kept, others, err := o.loadTokens(ctx, d)
	if err != nil {
		return remote.Value{}, err
	}
	d.Client = d.Client.WithHidden(append(others, kept.secrets()...)...)
	used, a, err := o.presentTokens(ctx, d, kept)
	if err != nil {
		return remote.Value{}, err
	}
	if err := o.storeRotation(ctx, d, kept, used, a.RefreshToken); err != nil {
		return remote.Value{}, err
	}
	return a.value()
}

// secrets returns the tokens.
func (r *rotation) secrets() (list []name.Secret) {
	for _, token := range r.Tokens {
		list = append(list, name.NewSecret(token))
	}
	return list
}

// loadTokens returns the refresh tokens to present, and others that the server may know.
func (o *OAuth2) loadTokens(ctx context.Context, d remote.Env) (kept rotation, others []name.Secret, err error) {
	first, err := d.Secret(ctx, o.RefreshToken)
	if err != nil {
		return rotation{}, nil, err
	}
	sum := sha256.Sum256([]byte(first.Reveal()))
	seed := hex.EncodeToString(sum[:])
	if o.unsaved != nil && o.unsaved.Seed == seed {
		if err := o.storeTokens(ctx, d, *o.unsaved); err != nil {
			return rotation{}, nil, err
		}
	}
	text, err := d.Memory.Remembered(d.Name)
	if err != nil {
		return rotation{}, nil, errors.New("the refresh token cannot be read from the store")
	}
	if text.Reveal() != "" && json.Unmarshal([]byte(text.Reveal()), &kept) != nil {
		return rotation{}, nil, errors.New("the refresh token in the store is damaged")
	}
	others = append(kept.secrets(), first)
	if kept.Seed != seed || len(kept.Tokens) == 0 {
		kept = rotation{Seed: seed, Tokens: []string{first.Reveal()}}
	}
	return kept, others, nil
}

// presentTokens requests a token with each refresh token until one is accepted, and returns its index. The request is not
// canceled when the gateway stops, because its answer may contain the only valid refresh token.
func (o *OAuth2) presentTokens(ctx context.Context, d remote.Env, kept rotation) (used int, a answer, err error) {
	whole := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		whole, cancel = context.WithDeadline(whole, deadline)
		defer cancel()
	}
	for used = range kept.Tokens {
		if err := ctx.Err(); err != nil {
			return used, a, err
		}
		q, err := o.question(ctx, d)
		if err != nil {
			return used, a, err
		}
		q.once = true
		q.form.Set("grant_type", grantRefresh)
		q.form.Set("refresh_token", kept.Tokens[used])
		a, err = q.send(whole, d)
		refused, isRefusal := errors.AsType[*remote.Error](err)
		if !isRefusal || refused.Code != "invalid_grant" || used == len(kept.Tokens)-1 {
			return used, a, err
		}
	}
	return used, a, errors.New("there is no refresh token")
}

// storeRotation stores the tokens for the next time, after the one at index used was accepted. next is the refresh
// token in the answer, if any.
func (o *OAuth2) storeRotation(ctx context.Context, d remote.Env, kept rotation, used int, next string) error {
	if err := fault.At(ctx, "secrets: refresh token presented"); err != nil {
		return err
	}
	old := kept.Tokens[used]
	switch {
	case next != "" && next != old:
		o.unsaved = &rotation{Seed: kept.Seed, Tokens: []string{next, old}}
	case len(kept.Tokens) > 1:
		o.unsaved = &rotation{Seed: kept.Seed, Tokens: []string{old}}
	default:
		return nil
	}
	return o.storeTokens(ctx, d, *o.unsaved)
}

// storeTokens seals tokens in the store.
func (o *OAuth2) storeTokens(ctx context.Context, d remote.Env, r rotation) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = d.Memory.Remember(d.Name, name.NewSecret(string(text)))
	}
	if err == nil {
		err = fault.At(ctx, "secrets: refresh tokens kept")
	}
	if err != nil {
		return fmt.Errorf("the new refresh token cannot be kept: %w", err)
	}
	o.unsaved = nil
	return nil
}
