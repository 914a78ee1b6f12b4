package keys

import (
	"context"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/strict"
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
	// that the configured quota applies again.
	SetAPIKeyQuotas(ctx context.Context, key string, named map[quota.Kind]int64) (api.Key, error)
	// DeleteAPIKey revokes a key. Revoking the operator's own key is an ErrConflict.
	DeleteAPIKey(ctx context.Context, key string) (api.Key, error)
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
	}
}
