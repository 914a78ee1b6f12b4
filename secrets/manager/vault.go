package manager

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
