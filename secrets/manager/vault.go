package manager

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// Vault is a field of a secret in Vault's key-value store.
type Vault struct {
	Address   string `yaml:"address"`   // such as https://vault.example.com:8200
	Mount     string `yaml:"mount"`     // of the store; empty: secret
	Path      string `yaml:"path"`      // of the secret, below the mount
	Field     string `yaml:"field"`     // of the secret
	KV        int    `yaml:"kv"`        // version of the store, 1 or 2; 0: 2
	Version   int    `yaml:"version"`   // of the secret, in version 2; 0: the latest
	Namespace string `yaml:"namespace"` // of Vault Enterprise
	CAFile    string `yaml:"ca_file"`   // trusted instead of the usual roots

	Token   string      `yaml:"token"`    // name of a secret, or one of:
	AppRole *VaultLogin `yaml:"app_role"` // log in by role and secret ID
	JWT     *VaultLogin `yaml:"jwt"`      // log in by a token of Kubernetes or another issuer

	session session
}

// VaultLogin configures how the gateway logs in to Vault.
type VaultLogin struct {
	Mount  string `yaml:"mount"`  // of the method; empty: approle, or kubernetes
	Role   string `yaml:"role"`   // its name; for AppRole its ID
	Secret string `yaml:"secret"` // name of a secret: the secret ID, or the token (a file source)
}

// Validate implements [remote.Source].
func (v *Vault) Validate(fail remote.Fail) {
	if err := remote.CheckURL(v.Address); err != nil {
		fail("address", "%v", err)
	}
	if !isPath(v.Path) || v.Mount != "" && !isPath(v.Mount) {
		fail("path", "is not a path such as teams/web, below the mount")
	}
	if v.Field == "" {
		fail("field", "is missing; give the name of the field with the value")
	}
	if v.KV < 0 || v.KV > 2 || v.Version < 0 || v.Version > 0 && v.KV == 1 {
		fail("kv", "is 1 or 2, and only version 2 has versions of secrets")
	}
	ways := 0
	for _, login := range []*VaultLogin{v.AppRole, v.JWT} {
		if login == nil {
			continue
		}
		if ways++; login.Role == "" || login.Secret == "" || login.Mount != "" && !isPath(login.Mount) {
			fail("app_role", "a login needs role, and secret, the name of a secret")
		}
	}
	if v.Token != "" {
		ways++
	}
	if ways != 1 {
		fail("token", "give one of token, app_role and jwt")
	}
}

// isPath reports whether s is a path without empty or dot segments.
func isPath(s string) bool {
	for segment := range strings.SplitSeq(s, "/") {
		if strings.Trim(segment, ".") == "" || strings.ContainsAny(segment, "?#%\\") {
			return false
		}
	}
	return len(s) <= 512
}

// Needs implements [remote.Source].
func (v *Vault) Needs() []string {
	switch {
	case v.AppRole != nil:
		return []string{v.AppRole.Secret}
	case v.JWT != nil:
		return []string{v.JWT.Secret}
	}
	return []string{v.Token}
}

// Place implements [remote.Source].
func (v *Vault) Place() string { return v.mount() + "/" + v.Path + " at " + hostOf(v.Address) }

func (v *Vault) mount() string {
	if v.Mount == "" {
		return "secret"
	}
	return v.Mount
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return u.Host
}

// Fetch implements [remote.Source].
func (v *Vault) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	client, err := d.Client.WithCA(v.CAFile)
	if err != nil {
		return remote.Value{}, err
	}
	d.Client = client
	return v.withToken(ctx, d, func(token name.Secret) (remote.Value, error) {
		if v.KV == 1 {
			return v.readPlain(ctx, d, token)
		}
		return v.readVersioned(ctx, d, token)
	})
}

// readVersioned reads a secret from a version 2 store.
func (v *Vault) readVersioned(ctx context.Context, d remote.Env, token name.Secret) (remote.Value, error) {
	var a struct {
		Data struct {
			Data     json.RawMessage `json:"data"`
			Metadata struct {
				Deleted   string `json:"deletion_time"`
				Destroyed bool   `json:"destroyed"`
			} `json:"metadata"`
		} `json:"data"`
	}
	at := "/v1/" + escaped(v.mount()) + "/data/" + escaped(v.Path)
	if v.Version > 0 {
		at += "?version=" + strconv.Itoa(v.Version)
	}
	if _, err := d.Client.JSON(ctx, v.request(at, token), &a); err != nil {
		return remote.Value{}, err
	}
	if m := a.Data.Metadata; m.Destroyed || isPast(m.Deleted, d.Now()) || string(a.Data.Data) == "null" {
		return remote.Value{}, remote.ErrGone
	}
	return remote.FieldOf(string(a.Data.Data), v.Field)
}

// isPast reports whether a time is in the past. It may be in the future, or missing.
func isPast(text string, now time.Time) bool {
	at, err := time.Parse(time.RFC3339Nano, text)
	return text != "" && (err != nil || !now.Before(at))
}

// readPlain reads a secret from a version 1 store.
func (v *Vault) readPlain(ctx context.Context, d remote.Env, token name.Secret) (remote.Value, error) {
	var a struct {
		Data json.RawMessage `json:"data"`
	}
	if _, err := d.Client.JSON(ctx, v.request("/v1/"+escaped(v.mount())+"/"+escaped(v.Path), token), &a); err != nil {
		return remote.Value{}, err
	}
	return remote.FieldOf(string(a.Data), v.Field)
}

func (v *Vault) request(at string, token name.Secret) remote.Request {
	r := remote.Request{URL: strings.TrimSuffix(v.Address, "/") + at, Header: http.Header{"X-Vault-Request": {"true"}}}
	if v.Namespace != "" {
		r.Header.Set("X-Vault-Namespace", v.Namespace)
	}
	if token.Reveal() != "" {
		r.Header.Set("X-Vault-Token", token.Reveal())
	}
	return r
}

// escaped escapes the segments of a path.
func escaped(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

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
