// Package keys serves the API keys: making, listing, replacing and revoking them. Only admin keys may use it.
package keys

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/internal/lazyregexp"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/quota"
)

// Host stores the keys in hashed form. Errors are as in package api. Keys are given by ID or name; the ID takes
// precedence.
type Host interface {
	// APIKeys lists the keys, oldest first.
	APIKeys(ctx context.Context) ([]api.Key, error)
	// CreateAPIKey creates a key and returns its value, which cannot be read again. A name already in use is an
	// ErrConflict.
	CreateAPIKey(ctx context.Context, req api.KeyRequest) (name.Secret, api.Key, error)
	// ReplaceAPIKey gives a key a new value. The old one stops working after grace.
	ReplaceAPIKey(ctx context.Context, key string, grace time.Duration) (name.Secret, api.Key, error)
	// SetAPIKeyQuotas overrides the named quotas of a key and leaves the others unchanged. 0 removes the override, so
	// that the configured quota applies again. model is its limit of models, nil: unchanged; not set: the configured one.
	SetAPIKeyQuotas(ctx context.Context, key string, named map[quota.Kind]int64, model *llm.Limit) (api.Key, error)
	// DeleteAPIKey revokes a key. Revoking the operator's own key is an ErrConflict.
	DeleteAPIKey(ctx context.Context, key string) (api.Key, error)
	// AddSSHKey adds a public key, in the wire format of RFC 4253, section 6.6, to a key. One that any key has is an ErrConflict.
	AddSSHKey(ctx context.Context, key, name string, public []byte) (api.Key, error)
	// RemoveSSHKey removes a public key, by its ID. Connections that it has logged in are cut.
	RemoveSSHKey(ctx context.Context, key, id string) (api.Key, error)
}

// Endpoints serves the keys.
type Endpoints struct {
	Boxes  rest.Finder
	Host   Host
	Bodies strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	made := reflect.TypeFor[apiKeyMadeView]()
	return []rest.Route{
		{Method: "POST", Path: "/v2/api-keys", ID: "createApiKey", Summary: "Make an API key with a role; only this response contains the key", Status: 201, Request: reflect.TypeFor[createKeyBody](), Example: `{"name":"ci","role":"box-creator","expires_in":"2160h","quotas":{"commands":32}}`, Response: made, Handle: e.create},
		{Method: "GET", Path: "/v2/api-keys", ID: "listApiKeys", Summary: "The API keys with their roles, latest uses and usage of their quotas, without the keys themselves", Response: reflect.TypeFor[apiKeysView](), Handle: e.list},
		{Method: "PATCH", Path: "/v2/api-keys/{api_key}", ID: "changeApiKey", Summary: "Change the quotas of an API key, by its ID or name; the key itself stays", Request: reflect.TypeFor[changeKeyBody](), Example: `{"quotas":{"commands":32,"boxes":0}}`, Response: reflect.TypeFor[apiKeyView](), Handle: e.change},
		{Method: "DELETE", Path: "/v2/api-keys/{api_key}", ID: "deleteApiKey", Summary: "Revoke an API key, by its ID or name; its running requests are ended", Response: reflect.TypeFor[apiKeyView](), Handle: e.delete},
		{Method: "POST", Path: "/v2/api-keys/{api_key}/rotate", ID: "replaceApiKey", Summary: "Replace an API key by another with the same ID, name, role, expiry and quotas; only this response contains the key", Request: reflect.TypeFor[replaceKeyBody](), Example: `{"grace":"1h"}`, Response: made, Handle: e.replace},
		{Method: "POST", Path: "/v2/api-keys/{api_key}/ssh-keys", ID: "addSshKey", Summary: "Add a public key that logs in over SSH with the permissions of an API key", Status: 201, Request: reflect.TypeFor[addSSHKeyBody](), Example: sshKeyExample, Response: reflect.TypeFor[sshKeyView](), Handle: e.addSSHKey},
		{Method: "GET", Path: "/v2/api-keys/{api_key}/ssh-keys", ID: "listSshKeys", Summary: "The public keys of an API key", Response: reflect.TypeFor[sshKeysView](), Handle: e.listSSHKeys},
		{Method: "DELETE", Path: "/v2/api-keys/{api_key}/ssh-keys/{ssh_key}", ID: "deleteSshKey", Summary: "Remove a public key, by its ID; connections that it has logged in are cut", Response: reflect.TypeFor[sshKeyView](), Handle: e.deleteSSHKey},
	}
}

const (
	// maxGrace bounds how long a replaced key may remain valid.
	maxGrace = 30 * 24 * time.Hour
	// maxLife bounds the lifetime of a key.
	maxLife = 10 * 366 * 24 * time.Hour
)

var keyName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// createKeyBody describes a key to create.
type createKeyBody struct {
	Name      string   `json:"name" doc:"1 to 63 letters, digits, '.', '_' or '-'; unique among the keys"`
	Role      api.Role `json:"role" enum:"admin box-creator read-only one-box auditor"`
	Box       string   `json:"box,omitempty" doc:"only with one-box: ID or name of the box. The key is for this box, not for a later one with the same name"`
	ExpiresIn string   `json:"expires_in,omitempty" doc:"how long the key works, such as 2160h; absent: until it is revoked"`

	Quotas map[string]int64 `json:"quotas,omitempty" doc:"quotas of this key, by name (docs/keys.md); absent: the configured ones"`
	Model  modelLimit       `json:"model,omitempty" doc:"what models may cost the boxes that the key makes (docs/budgets.md); absent: as configured"`
}

// modelLimit is a limit of models in a body.
type modelLimit struct{ json.RawMessage }

// Forms describes the limit.
func (modelLimit) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[llm.Limit]()} }

// changeKeyBody changes a key.
type changeKeyBody struct {
	Quotas map[string]int64 `json:"quotas,omitempty" doc:"quotas to change, by name; 0 restores the configured quota. Other quotas stay unchanged"`
	Model  modelLimit       `json:"model,omitempty" doc:"limit of models; null restores the configured one"`
}

// replaceKeyBody asks for a new value of a key.
type replaceKeyBody struct {
	Grace string `json:"grace,omitempty" doc:"how long the old key remains valid, such as 1h; absent: it is revoked immediately"`
}

// apiKeyView is a key without its value.
type apiKeyView struct {
	ID        string       `json:"id" example:"key_0123456789abcdef"`
	Name      string       `json:"name"`
	Role      api.Role     `json:"role" enum:"admin box-creator read-only one-box auditor"`
	BoxID     policy.BoxID `json:"box_id,omitempty" doc:"ID of the box of a key with the role one-box"`
	CreatedAt string       `json:"created_at"`
	ExpiresAt string       `json:"expires_at,omitempty"`
	LastUsed  string       `json:"last_used,omitempty" doc:"to the minute, on this host; absent: not yet"`
	Fleet     bool         `json:"fleet,omitempty" doc:"a key of the fleet, which each of its hosts accepts; absent: of this host alone"`

	Quotas map[string]int64   `json:"quotas,omitempty" doc:"quotas set for this key"`
	Use    map[string]useView `json:"use,omitempty" doc:"only in lists: the key's usage of each quota"`

	Model    *llm.Limit      `json:"model,omitempty" doc:"limit of models set for this key"`
	ModelUse *rest.ModelView `json:"model_use,omitempty" doc:"only in lists: the use of models by the boxes that the key has made; absent: none"`
}

// useView is a key's usage of a quota.
type useView struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit,omitempty" doc:"absent: no limit"`
}

// usesOf returns the quotas with a limit or a usage.
func usesOf(u quota.Uses) map[string]useView {
	views := map[string]useView{}
	for k, use := range u {
		if use != (quota.Use{}) {
			views[quota.Kind(k).String()] = useView(use)
		}
	}
	return views
}

// quotas parses the quotas in a body. Values below least are problems.
func quotas(p *problem.List, set map[string]int64, least int64) map[quota.Kind]int64 {
	out := map[quota.Kind]int64{}
	for name, n := range set {
		k, known := quota.KindByName(name)
		switch {
		case !known:
			p.Add("/quotas/"+problem.EscapeKey(problem.Clip(name)), "is not a quota; the quotas are %s", strings.Join(quota.Names(), ", "))
		case n < least || n > k.Max():
			p.Add("/quotas/"+name, "must be %d to %d", least, k.Max())
		default:
			out[k] = n
		}
	}
	return out
}

// apiKeyMadeView is a new key with its value.
type apiKeyMadeView struct {
	apiKeyView
	Key string `json:"key" doc:"the key itself; it cannot be read again"`
}

type apiKeysView struct {
	Keys []apiKeyView `json:"api_keys" doc:"oldest first; two entries with one ID are a key and the one that it replaced, within its grace"`
}

func view(k api.Key) apiKeyView {
	v := apiKeyView{
		ID: k.Key, Name: k.Name, Role: k.Role, BoxID: k.Box, CreatedAt: formatTime(k.CreatedAt), ExpiresAt: formatTime(k.ExpiresAt), LastUsed: formatTime(k.LastUsed),
		Quotas: k.Quotas.Map(), Fleet: k.Fleet,
	}
	if k.Model.IsSet() {
		v.Model = &k.Model
	}
	return v
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// duration parses a duration in a body. Empty text is 0.
func duration(p *problem.List, pointer, text string, most time.Duration) time.Duration {
	if text == "" {
		return 0
	}
	d, err := api.ParseDuration(text)
	if err != nil || d > most {
		p.Add(pointer, "must be a duration from 0s to %s, such as 24h or 7d", most)
	}
	return d
}

func (e *Endpoints) create(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body createKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if !keyName.MatchString(body.Name) {
		p.Add("/name", "must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	if !slices.Contains(api.Roles, body.Role) {
		p.Add("/role", "must be admin, box-creator, read-only, one-box or auditor")
	}
	if (body.Role == api.RoleBox) != (body.Box != "") {
		p.Add("/box", "names the box of a key with the role one-box, which needs one; no other role has one")
	}
	req := api.KeyRequest{Name: body.Name, Role: body.Role, ExpiresIn: duration(&p, "/expires_in", body.ExpiresIn, maxLife)}
	if body.ExpiresIn != "" && req.ExpiresIn <= 0 {
		p.Add("/expires_in", "must be more than 0s")
	}
	for k, n := range quotas(&p, body.Quotas, 1) {
		req.Quotas[k] = n
	}
	if body.Role == api.RoleAdmin && len(body.Quotas) > 0 {
		p.Add("/quotas", "an admin key has no quotas")
	}
	if model := spec.ModelLimit(&p, "/model", body.Model.RawMessage); model != nil {
		req.Model = *model
	}
	if body.Role == api.RoleAdmin && req.Model.IsSet() {
		p.Add("/model", "an admin key has no limit of models")
	}
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	if body.Box != "" {
		box, err := rest.FindBox(r.Context(), e.Boxes, body.Box)
		if err != nil {
			return rest.Reply{}, err
		}
		req.Box = box.ID
	}
	key, made, err := e.Host.CreateAPIKey(r.Context(), req)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Status: http.StatusCreated, Body: apiKeyMadeView{view(made), key.Reveal()}, Change: changed("made", made)}, nil
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	found, err := e.Host.APIKeys(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	views := apiKeysView{Keys: []apiKeyView{}}
	for _, k := range found {
		v := view(k)
		v.Use = usesOf(k.Uses)
		v.ModelUse = rest.ViewModels(k.ModelUsage)
		views.Keys = append(views.Keys, v)
	}
	return rest.Reply{Body: views}, nil
}

func (e *Endpoints) delete(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	gone, err := e.Host.DeleteAPIKey(r.Context(), r.PathValue("api_key"))
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: view(gone), Change: changed("revoked", gone)}, nil
}

func (e *Endpoints) change(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body changeKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	set := quotas(&p, body.Quotas, 0)
	model := spec.ModelLimit(&p, "/model", body.Model.RawMessage)
	if len(body.Quotas) == 0 && model == nil && p.Err() == nil {
		p.Add("/quotas", "names at least one quota to change")
	}
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.SetAPIKeyQuotas(r.Context(), r.PathValue("api_key"), set, model)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: view(made), Change: changed("changed", made)}, nil
}

func (e *Endpoints) replace(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body replaceKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	grace := duration(&p, "/grace", body.Grace, maxGrace)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	key, made, err := e.Host.ReplaceAPIKey(r.Context(), r.PathValue("api_key"), grace)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: apiKeyMadeView{view(made), key.Reveal()}, Change: changed("replaced", made)}, nil
}

// changed describes a change of a key for the audit trail.
func changed(how string, k api.Key) *rest.Change {
	return &rest.Change{Box: k.Box, What: map[string]any{"api_key_" + how: view(k)}}
}
