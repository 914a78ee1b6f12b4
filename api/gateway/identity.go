package gateway

import (
	"encoding/json"
	"net/http"

	"boxgate/api/rest"
)

// keySet is a JSON Web Key Set (RFC 7517).
type keySet struct {
	Keys []publicKey `json:"keys"`
}

// publicKey is a key of a set.
type publicKey struct {
	Use       string `json:"use"`
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Curve     string `json:"crv"`
	Algorithm string `json:"alg"`
	X         string `json:"x"`
	Y         string `json:"y"`
}

// identityKeys returns the public keys that verify the identity tokens of forwarded requests.
func (e *Endpoints) identityKeys(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	text, err := e.Secrets.IdentityKeys(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	var set keySet
	err = json.Unmarshal(text, &set)
	return rest.Reply{Body: set}, err
}
