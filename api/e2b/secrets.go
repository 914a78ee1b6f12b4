package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy/name"
)

// secretView is a secret without its value: of the API key, or of the configuration, whose secrets only some keys see.
type secretView struct {
	SecretID       string            `json:"secretID"`
	Name           string            `json:"name"`
	CurrentVersion uint64            `json:"currentVersion"`
	Metadata       map[string]string `json:"metadata"`
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
}

// keySecret is a secret of an API key in boxgate's own API.
type keySecret struct {
	Name      string            `json:"name"`
	KeyID     string            `json:"key_id"`
	Metadata  map[string]string `json:"metadata"`
	Version   uint64            `json:"version"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

func (s keySecret) view() secretView {
	v := secretView{SecretID: s.Name, Name: s.Name, CurrentVersion: s.Version, Metadata: s.Metadata, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

// keySecrets is the path of the secrets of API keys in boxgate's own API.
const keySecrets = "/v2/key-secrets"

// secretPath returns the path of the secret that a request names, in boxgate's own API.
func secretPath(r *http.Request) (string, error) {
	n := r.PathValue("secret")
	if !name.IsSecretName(n) {
		return "", noSecret(n)
	}
	return keySecrets + "/" + url.PathEscape(n), nil
}

func noSecret(n string) error {
	return api.Errorf(api.ErrNotFound, "secret %q not found", name.ShownSecretName(problem.Clip(n)))
}

// secrets lists the secrets of the API key, and the configured ones if the key may list them. Its own have precedence, as in
// header rules of keys that are not admin keys; admin keys have none with the name of one of the configuration.
func (e *Endpoints) secrets(r *http.Request) ([]secretView, error) {
	var own struct {
		Secrets []keySecret `json:"key_secrets"`
	}
	if err := e.own(r, http.MethodGet, keySecrets, nil, &own); err != nil {
		return nil, err
	}
	views := []secretView{}
	for _, s := range own.Secrets {
		if s.KeyID == api.CallerOf(r.Context()).Key {
			views = append(views, s.view())
		}
	}
	var configured struct {
		Secrets []struct {
			Name   string     `json:"name"`
			Source string     `json:"source"`
			ReadAt *time.Time `json:"read_at"`
		} `json:"secrets"`
	}
	if err := e.own(r, http.MethodGet, "/v2/secrets", nil, &configured); err != nil && !hasStatus(err, http.StatusForbidden) {
		return nil, err
	}
	for _, s := range configured.Secrets {
		v := secretView{SecretID: s.Name, Name: s.Name, CurrentVersion: 1, Metadata: map[string]string{"source": s.Source}}
		if s.ReadAt != nil {
			v.CreatedAt, v.UpdatedAt = *s.ReadAt, *s.ReadAt
		}
		if !slices.ContainsFunc(views, func(own secretView) bool { return own.Name == s.Name }) {
			views = append(views, v)
		}
	}
	return views, nil
}

func (e *Endpoints) listSecrets(w http.ResponseWriter, r *http.Request) (int, any, error) {
	q, err := query(r, "limit", "nextToken")
	if err != nil {
		return 0, nil, err
	}
	p, err := pageOf(q)
	if err != nil {
		return 0, nil, err
	}
	list, err := e.secrets(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, cut(w, list, p, false, func(s secretView) string { return s.SecretID }), nil
}

func (e *Endpoints) getSecret(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	list, err := e.secrets(r)
	if err != nil {
		return 0, nil, err
	}
	for _, s := range list {
		if s.SecretID == r.PathValue("secret") {
			return http.StatusOK, s, nil
		}
	}
	return 0, nil, noSecret(r.PathValue("secret"))
}

// newSecret is the body of a create request, here and in boxgate's own API.
type newSecret struct {
	Name string `json:"name"`
	secretUpdate
}

// secretUpdate is the body of an update, here and in boxgate's own API.
type secretUpdate struct {
	Value    string            `json:"value"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (e *Endpoints) createSecret(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body newSecret
	if err := e.decode(w, r, &body, false); err != nil {
		return 0, nil, err
	}
	var made keySecret
	err := e.own(r, http.MethodPost, keySecrets, body, &made)
	return http.StatusCreated, made.view(), err
}

func (e *Endpoints) updateSecret(w http.ResponseWriter, r *http.Request) (int, any, error) {
	path, err := secretPath(r)
	if err != nil {
		return 0, nil, err
	}
	var body secretUpdate
	if err := e.decode(w, r, &body, false); err != nil {
		return 0, nil, err
	}
	var changed keySecret
	err = e.own(r, http.MethodPut, path, body, &changed)
	return http.StatusOK, changed.view(), err
}

func (e *Endpoints) deleteSecret(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	path, err := secretPath(r)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, e.own(r, http.MethodDelete, path, nil, nil)
}
