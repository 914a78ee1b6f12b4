package gateway

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Boxes finds and lists the boxes.
type Boxes interface {
	rest.Finder
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f api.BoxFilter) ([]api.Box, error)
}

// Health reports whether the gateway is ready, and the usage of its bounded resources.
type Health interface {
	// Ready returns nil if boxes can be created and served and every listener accepts connections. Otherwise the error
	// describes the obstacle.
	Ready(ctx context.Context) error
	// Capacity returns the usage of the gateway's bounded resources.
	Capacity(ctx context.Context) (api.Capacity, error)
}

// Store rotates the keys of the store and of the API, and backs up and verifies the store.
type Store interface {
	// RotateStoreKey re-encrypts every secret of the store with a new key file or with the new passphrase. The passphrase
	// must be given exactly if the store has one; otherwise the error is a *document.InvalidError.
	RotateStoreKey(ctx context.Context, newPassphrase name.Secret) error
	// BackupStore writes a consistent copy of the store, with its secrets encrypted.
	BackupStore(ctx context.Context, w io.Writer) error
	// VerifyStore reads every document of the store.
	VerifyStore(ctx context.Context) (api.StoreReport, error)
	// RotateAPIKey makes a new API key and writes it to the file read by the commands on the gateway's host. Earlier keys
	// stop working after grace.
	RotateAPIKey(ctx context.Context, grace time.Duration) error
}

// Secrets gives access to the state of the configured secrets, and to the public keys of identity tokens.
type Secrets interface {
	// Secrets returns the state of every configured secret, sorted by name.
	Secrets(ctx context.Context) ([]api.SecretStatus, error)
	// RefreshSecret discards the value of a secret, cuts the connections that carry it, and reads it again; the state
	// shows whether that succeeded. A secret that cannot change while the gateway runs is an ErrConflict.
	RefreshSecret(ctx context.Context, name string) (api.SecretStatus, error)
	// IdentityKeys returns the public keys of the identity tokens in forwarded requests, as a JSON Web Key Set.
	IdentityKeys(ctx context.Context) (json.RawMessage, error)
}

// Authorities are the certificate authorities.
type Authorities interface {
	// CA returns the PEM of the box's interception CA certificate.
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
	// IngressCA returns the PEM of the internal CA that signs public URLs, or ErrNotFound if they have another issuer.
	IngressCA(ctx context.Context) ([]byte, error)
}

// Events gives access to decisions about the traffic of boxes.
type Events interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
}

// Endpoints serves the gateway-wide endpoints.
type Endpoints struct {
	Boxes       Boxes
	Health      Health
	Store       Store
	Secrets     Secrets
	Authorities Authorities
	Events      Events
	Bodies      strict.Bodies
	// Started is the time when the gateway began to serve.
	Started time.Time
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/healthz", ID: "getHealth", Public: true, Summary: "Whether the process runs; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.healthz},
		{Method: "GET", Path: "/readyz", ID: "getReadiness", Public: true, Summary: "Whether boxes can be created and served, and every listener accepts connections; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.readyz},
		{Method: "GET", Path: "/v2/gateway", ID: "getStatus", Summary: "Version, uptime, boxes by state, recent denials, and connections of the listeners", Response: reflect.TypeFor[gatewayView](), Handle: e.status},
		{Method: "GET", Path: "/.well-known/jwks.json", ID: "getIdentityKeys", Public: true, Summary: "The public keys that verify the identity tokens of forwarded requests; needs no key", Response: reflect.TypeFor[keySet](), Handle: e.identityKeys},
		{Method: "GET", Path: "/v2/box/{id}/ca", ID: "getBoxCa", Summary: "The interception CA of a box", Produces: []string{"application/x-pem-file"}, Handle: e.boxCA},
		{Method: "POST", Path: "/v2/store/rotate-key", ID: "rotateStoreKey", Summary: "Encrypt the secrets of the store with a new key", Request: reflect.TypeFor[storeKeyBody](), Example: `{}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateStoreKey},
		{Method: "GET", Path: "/v2/store/backup", ID: "backupStore", Summary: "A consistent copy of the store, with its secrets encrypted", Produces: []string{"application/octet-stream"}, Handle: e.backup},
		{Method: "GET", Path: "/v2/store/verify", ID: "verifyStore", Summary: "Whether every document of the store can be read", Response: reflect.TypeFor[api.StoreReport](), Handle: e.verifyStore},
		{Method: "POST", Path: "/v2/api-key/rotate", ID: "rotateApiKey", Summary: "Replace the operator's API key by a new one, written to the state directory; keys with names stay", Request: reflect.TypeFor[apiKeyBody](), Example: `{"grace":"1h"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateAPIKey},
		{Method: "GET", Path: "/v2/secrets", ID: "listSecrets", Summary: "The secrets of the configuration with their sources and ages, without values", Response: reflect.TypeFor[secretsView](), Handle: e.listSecrets},
		{Method: "POST", Path: "/v2/secrets/{name}/refresh", ID: "refreshSecret", Summary: "Discard the value of a secret, cut the connections that carry it, and read it again", Response: reflect.TypeFor[secretView](), Handle: e.refreshSecret},
		{Method: "GET", Path: "/v2/ca", ID: "getCa", Summary: "The CA that signs public URLs", Produces: []string{"application/x-pem-file"}, Handle: e.ingressCA},
	}
}
