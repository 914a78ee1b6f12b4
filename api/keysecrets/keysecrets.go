// Package keysecrets serves the secrets that API keys store, for header rules that they set. A key sees, changes and uses only its own. Admin
// keys also see and delete the secrets of other keys. Values are never returned.
package keysecrets

import (
	"context"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// Host stores the secrets, sealed. Errors are as in package api. It does not check what a caller may do with a secret.
type Host interface {
	// KeySecrets lists the secrets of all API keys that are valid, sorted by ID.
	KeySecrets(ctx context.Context) ([]api.KeySecret, error)
	// CreateKeySecret stores a secret of the caller's API key. A name already in use by the key is an ErrConflict.
	CreateKeySecret(ctx context.Context, name string, with api.KeySecretChange) (api.KeySecret, error)
	// ReplaceKeySecret replaces the value of a secret, by its ID. Requests of boxes that begin after the call have the new one.
	ReplaceKeySecret(ctx context.Context, id string, with api.KeySecretChange) (api.KeySecret, error)
	// DeleteKeySecret deletes a secret, by its ID. Requests whose rules name it are refused from then on, and those in progress with it cut.
	DeleteKeySecret(ctx context.Context, id string) error
}

// Endpoints serves the secrets of API keys.
type Endpoints struct {
	Host   Host
	Bodies strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	one := reflect.TypeFor[keySecretView]()
	return []rest.Route{
		{Method: "POST", Path: "/v2/key-secrets", ID: "createKeySecret", Summary: "Store a secret of the calling API key, for header rules that it sets; the value cannot be read again", Status: 201, Request: reflect.TypeFor[newKeySecretBody](), Example: `{"name":"openai","value":"new-value","hosts":["api.openai.com"]}`, Response: one, Handle: e.create},
		{Method: "GET", Path: "/v2/key-secrets", ID: "listKeySecrets", Summary: "The secrets of the calling API key, or of all keys for admin and read-only keys, without values", Response: reflect.TypeFor[keySecretsView](), Handle: e.list},
		{Method: "GET", Path: "/v2/key-secrets/{secret}", ID: "getKeySecret", Summary: "A secret of an API key, without its value", Response: one, Handle: e.get},
		{Method: "PUT", Path: "/v2/key-secrets/{secret}", ID: "replaceKeySecret", Summary: "Replace the value of a secret of the calling API key; boxes use it from their next request on", Request: reflect.TypeFor[keySecretBody](), Example: `{"value":"next-value"}`, Response: one, Handle: e.replace},
		{Method: "DELETE", Path: "/v2/key-secrets/{secret}", ID: "deleteKeySecret", Summary: "Delete a secret of an API key; requests whose header rules name it are refused from then on, and those in progress with it cut", Response: one, Handle: e.delete},
	}
}

// maxHosts is the largest number of host patterns of a secret.
const maxHosts = 64

// newKeySecretBody is a new secret.
type newKeySecretBody struct {
	Name string `json:"name" doc:"1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit; unique among the secrets of the key"`
	keySecretBody
}

// keySecretBody is a new value.
type keySecretBody struct {
	Value    string            `json:"value" doc:"1 to 8192 bytes of visible ASCII, with spaces and tabs inside; never returned"`
	Hosts    *[]string         `json:"hosts,omitempty" doc:"patterns of the hosts that it may be sent to, as in header rules; empty: every host of a rule that names it. Absent in a replacement: as before"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"texts of your programs about the secret, shown with it. Absent in a replacement: as before"`
}

// change checks the body.
func (b keySecretBody) change(p *problem.List) api.KeySecretChange {
	if b.Value == "" {
		p.Add("/value", "is empty")
	} else if flaw := match.HeaderValueFlaw(b.Value); flaw != "" { // does not quote the value
		p.Add("/value", "%s", flaw)
	}
	if b.Hosts != nil {
		b.Hosts = new(canonicalHosts(p, *b.Hosts))
	}
	spec.Metadata(p, "/metadata", b.Metadata)
	return api.KeySecretChange{Value: name.NewSecret(b.Value), Hosts: b.Hosts, Metadata: b.Metadata}
}

// canonicalHosts reads host patterns.
func canonicalHosts(p *problem.List, hosts []string) (out []string) {
	if len(hosts) > maxHosts {
		p.Add("/hosts", "has %d patterns; the limit is %d", len(hosts), maxHosts)
		return nil
	}
	for i, host := range hosts {
		pattern, err := name.ParsePattern(host)
		switch {
		case err != nil:
			p.Add("/hosts/"+strconv.Itoa(i), "%s", err)
		case pattern.IsWildcard() && pattern.Name().IsZero():
			p.Add("/hosts/"+strconv.Itoa(i), "covers every host; leave hosts out for the hosts of the rules")
		case !slices.Contains(out, pattern.String()):
			out = append(out, pattern.String())
		}
	}
	return out
}

// keySecretView is a secret without its value.
type keySecretView struct {
	ID        string            `json:"id" example:"key_0123456789abcdef:openai" doc:"names it among the secrets of all API keys, also in header rules as they are read and in decisions"`
	Name      string            `json:"name"`
	KeyID     string            `json:"key_id" doc:"ID of the API key that has stored it"`
	Hosts     []string          `json:"hosts" doc:"the hosts that it may be sent to; empty: every host of a rule that names it"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Version   uint64            `json:"version" doc:"1, and one more with each new value"`
	CreatedAt string            `json:"created_at"`
	UpdatedAt string            `json:"updated_at"`
}

// keySecretsView is a list of secrets.
type keySecretsView struct {
	Secrets []keySecretView `json:"key_secrets" doc:"sorted by key and name"`
}

func viewOf(s api.KeySecret) keySecretView {
	return keySecretView{
		ID: s.ID, Name: s.Name, KeyID: s.Key, Hosts: append([]string{}, s.Hosts...), Metadata: s.Metadata, Version: s.Version,
		CreatedAt: s.CreatedAt.UTC().Format(time.RFC3339), UpdatedAt: s.UpdatedAt.UTC().Format(time.RFC3339),
	}
}

// find finds a secret that the caller sees, by its ID, or by the name that the caller's key has given it.
func (e *Endpoints) find(r *http.Request) (api.KeySecret, error) {
	caller, asked := api.CallerOf(r.Context()), r.PathValue("secret")
	id := asked
	if name.IsSecretName(asked) {
		id = name.KeySecret(caller.Key, asked)
	}
	all, err := e.Host.KeySecrets(r.Context())
	if err != nil {
		return api.KeySecret{}, err
	}
	i := slices.IndexFunc(all, func(s api.KeySecret) bool { return s.ID == id && caller.SeesKeySecret(s) })
	if i < 0 { // the text may be a value given by mistake
		return api.KeySecret{}, api.Errorf(api.ErrNotFound, "this API key has no secret %q", name.ShownSecretName(problem.Clip(asked)))
	}
	return all[i], nil
}

func (e *Endpoints) create(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body newKeySecretBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if !name.IsSecretName(body.Name) { // not quoted: perhaps the value
		p.Add("/name", "must be 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	with := body.change(&p)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.CreateKeySecret(r.Context(), body.Name, with)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Status: http.StatusCreated, Body: viewOf(made), Change: changed("stored", made)}, nil
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	all, err := e.Host.KeySecrets(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	view := keySecretsView{Secrets: []keySecretView{}}
	for _, s := range all {
		if api.CallerOf(r.Context()).SeesKeySecret(s) {
			view.Secrets = append(view.Secrets, viewOf(s))
		}
	}
	return rest.Reply{Body: view}, nil
}

func (e *Endpoints) get(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.find(r)
	return rest.Reply{Body: viewOf(s)}, err
}

func (e *Endpoints) replace(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body keySecretBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	with := body.change(&p)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	s, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if !api.CallerOf(r.Context()).OwnsKeySecret(s) {
		return rest.Reply{}, problem.Refuse(http.StatusForbidden, "the secret %q belongs to another API key, which alone may replace its value; an admin key may delete it", s.ID)
	}
	if s, err = e.Host.ReplaceKeySecret(r.Context(), s.ID, with); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewOf(s), Change: changed("replaced", s)}, nil
}

func (e *Endpoints) delete(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.DeleteKeySecret(r.Context(), s.ID); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewOf(s), Change: changed("deleted", s)}, nil
}

// changed describes a change of a secret for the audit trail, without texts of the client other than names.
func changed(how string, s api.KeySecret) *rest.Change {
	what := map[string]any{"id": s.ID, "version": s.Version}
	if len(s.Hosts) > 0 {
		what["hosts"] = s.Hosts
	}
	if len(s.Metadata) > 0 {
		what["metadata"] = slices.Sorted(maps.Keys(s.Metadata))
	}
	return &rest.Change{What: map[string]any{"key_secret_" + how: what}}
}
