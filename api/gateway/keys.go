package gateway

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy/name"
)

// maxGrace bounds how long a replaced key may remain valid.
const maxGrace = 30 * 24 * time.Hour

// storeKeyBody asks for a new key of the store.
type storeKeyBody struct {
	NewPassphrase string `json:"new_passphrase,omitempty" doc:"the new passphrase; only if the store is encrypted with a passphrase"`
}

// apiKeyBody asks for a new API key.
type apiKeyBody struct {
	Grace string `json:"grace,omitempty" doc:"how long earlier keys remain valid, such as 1h; absent: they are revoked immediately"`
}

// rotateStoreKey changes the key that encrypts the secrets of the store.
func (e *Endpoints) rotateStoreKey(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body storeKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if err := e.Store.RotateStoreKey(r.Context(), name.NewSecret(body.NewPassphrase)); err != nil {
		return rest.Reply{}, err
	}
	return rest.Done(), nil
}

// rotateAPIKey replaces the operator's API key. The new key is written to the state directory, not returned.
func (e *Endpoints) rotateAPIKey(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body apiKeyBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var grace time.Duration
	if body.Grace != "" {
		var err error
		if grace, err = api.ParseDuration(body.Grace); err != nil || grace > maxGrace {
			return rest.Reply{}, problem.Invalid("/grace", "must be a duration from 0s to 720h, such as 1h")
		}
	}
	if err := e.Store.RotateAPIKey(r.Context(), grace); err != nil {
		return rest.Reply{}, err
	}
	return rest.Done(), nil
}
