package gateway

import (
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/strict"
)

// Endpoints serves the gateway itself: its health and state, its keys and its CAs.
type Endpoints struct {
	Host   api.Host
	Bodies strict.Bodies
	// Started is when the gateway began to serve.
	Started time.Time
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/healthz", ID: "getHealth", Public: true, Summary: "Whether the process runs; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.healthz},
		{Method: "GET", Path: "/readyz", ID: "getReadiness", Public: true, Summary: "Whether boxes can be created and served, and every listener accepts connections; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.readyz},
		{Method: "GET", Path: "/v2/gateway", ID: "getStatus", Summary: "Version, uptime, boxes by state, recent denials, and what the listeners hold", Response: reflect.TypeFor[gatewayView](), Handle: e.status},
		{Method: "GET", Path: "/.well-known/jwks.json", ID: "getIdentityKeys", Public: true, Summary: "The public keys of the tokens that forwarded requests carry; needs no key", Response: reflect.TypeFor[keySet](), Handle: e.identityKeys},
		{Method: "GET", Path: "/v2/box/{id}/ca", ID: "getBoxCa", Summary: "The interception CA of a box", Produces: []string{"application/x-pem-file"}, Handle: e.boxCA},
		{Method: "POST", Path: "/v2/store/rotate-key", ID: "rotateStoreKey", Summary: "Encrypt the secrets of the store with a new key", Request: reflect.TypeFor[storeKeyBody](), Example: `{}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateStoreKey},
		{Method: "GET", Path: "/v2/store/backup", ID: "backupStore", Summary: "A copy of the store as it is at one moment, with its secrets encrypted", Produces: []string{"application/octet-stream"}, Handle: e.backup},
		{Method: "GET", Path: "/v2/store/verify", ID: "verifyStore", Summary: "Whether every document of the store can be read", Response: reflect.TypeFor[api.StoreReport](), Handle: e.verifyStore},
		{Method: "POST", Path: "/v2/api-key/rotate", ID: "rotateApiKey", Summary: "Replace the operator's API key by a new one, written to the state directory; keys with names stay", Request: reflect.TypeFor[apiKeyBody](), Example: `{"grace":"1h"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateAPIKey},
		{Method: "GET", Path: "/v2/secrets", ID: "listSecrets", Summary: "The secrets of the configuration with their sources and ages, without values", Response: reflect.TypeFor[secretsView](), Handle: e.listSecrets},
		{Method: "POST", Path: "/v2/secrets/{name}/refresh", ID: "refreshSecret", Summary: "Give up the value of a secret, cut the connections that carry it, and read it anew", Response: reflect.TypeFor[secretView](), Handle: e.refreshSecret},
		{Method: "GET", Path: "/v2/ca", ID: "getCa", Summary: "The CA that signs public URLs", Produces: []string{"application/x-pem-file"}, Handle: e.ingressCA},
	}
}
