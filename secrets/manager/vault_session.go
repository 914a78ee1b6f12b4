package manager

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// session is the token of a login. It is reused until its lease ends, because Vault keeps the token of every login
// until then. Safe for concurrent use.
type session struct {
	mu      sync.Mutex
	token   name.Secret
	secret  name.Secret // the secret used for the login
	expires time.Time
	revoked bool // the token must not be used again, and must be revoked
}

// maxSession bounds how long a token is used, whatever its lease.
const maxSession = 12 * time.Hour

// Forget implements [remote.Forgetter].
func (v *Vault) Forget() {
	v.session.mu.Lock()
	defer v.session.mu.Unlock()
	v.session.revoked = true
}

// withToken calls read with a Vault token, that of the last login if possible. If Vault refuses that token, read is
// called again with a new one.
func (v *Vault) withToken(ctx context.Context, d remote.Env, read func(name.Secret) (remote.Value, error)) (remote.Value, error) {
	secret, err := d.Secret(ctx, v.Needs()[0])
	if err != nil {
		return remote.Value{}, err
	}
	if v.Token != "" {
		return read(secret)
	}
	if token := v.reusableToken(ctx, d, secret); token.Reveal() != "" {
		value, err := read(token)
		refused, ok := errors.AsType[*remote.Error](err)
		if !ok || refused.Status != http.StatusForbidden {
			return value, err
		}
		v.Forget()
		v.reusableToken(ctx, d, secret)
	}
	token, err := v.login(ctx, d, secret)
	if err != nil {
		return remote.Value{}, err
	}
	return read(token)
}

// reusableToken returns the token of the last login if it may still be used, else a zero value. An unusable token whose
// lease has not ended is revoked.
func (v *Vault) reusableToken(ctx context.Context, d remote.Env, secret name.Secret) name.Secret {
	s := &v.session
	s.mu.Lock()
	token, lasts := s.token, d.Now().Before(s.expires)
	if token.Reveal() != "" && lasts && !s.revoked && s.secret.Reveal() == secret.Reveal() {
		s.mu.Unlock()
		return token
	}
	s.token, s.secret, s.expires, s.revoked = name.Secret{}, name.Secret{}, time.Time{}, false
	s.mu.Unlock()
	if token.Reveal() != "" && lasts {
		r := v.request("/v1/auth/token/revoke-self", token)
		r.Method, r.Once = http.MethodPost, true
		_, _, _ = d.Client.Do(ctx, r) // otherwise its lease ends on its own
	}
	return name.Secret{}
}

// login returns the token of a new login, and keeps it for the duration of its lease.
func (v *Vault) login(ctx context.Context, d remote.Env, secret name.Secret) (name.Secret, error) {
	r, err := v.loginRequest(secret)
	if err != nil {
		return name.Secret{}, err
	}
	var a struct {
		Auth struct {
			Token string `json:"client_token"`
			Lease int64  `json:"lease_duration"` // in seconds; 0: unlimited
		} `json:"auth"`
	}
	began := d.Now()
	if _, err := d.Client.JSON(ctx, r, &a); err != nil {
		return name.Secret{}, err
	}
	if a.Auth.Token == "" {
		return name.Secret{}, remote.ErrAnswer("client_token")
	}
	token, lease := name.NewSecret(a.Auth.Token), maxSession
	if a.Auth.Lease > 0 {
		lease = time.Duration(min(a.Auth.Lease, int64(maxSession/time.Second))) * time.Second
	}
	v.session.mu.Lock()
	defer v.session.mu.Unlock()
	v.session.token, v.session.secret, v.session.expires = token, secret, began.Add(lease*9/10)
	return token, nil
}

// loginRequest returns the login request.
func (v *Vault) loginRequest(secret name.Secret) (remote.Request, error) {
	way, method, body := v.JWT, "kubernetes", map[string]string{}
	if v.AppRole != nil {
		way, method = v.AppRole, "approle"
		body["role_id"], body["secret_id"] = way.Role, secret.Reveal()
	} else {
		body["role"], body["jwt"] = way.Role, secret.Reveal()
	}
	if way.Mount != "" {
		method = way.Mount
	}
	text, err := json.Marshal(body)
	r := v.request("/v1/auth/"+escaped(method)+"/login", name.Secret{})
	r.Body, r.Hide = text, []name.Secret{secret}
	return r, err
}
