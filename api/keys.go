package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"boxgate/policy"
)

// maxGrace bounds how long a replaced key may go on working.
const maxGrace = 30 * 24 * time.Hour

// storeKeyBody asks for a new key of the store.
type storeKeyBody struct {
	NewPassphrase string `json:"new_passphrase,omitempty" doc:"where the store is encrypted with a passphrase, and only there: the new one"`
}

// apiKeyBody asks for a new API key.
type apiKeyBody struct {
	Grace string `json:"grace,omitempty" doc:"how long earlier keys go on working, such as 1h; absent: not at all"`
}

// rotateStoreKey changes what the secrets of the store are encrypted with.
func (a *API) rotateStoreKey(w http.ResponseWriter, r *http.Request) (reply, error) {
	var body storeKeyBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	if err := a.Host.RotateStoreKey(r.Context(), policy.NewSecret(body.NewPassphrase)); err != nil {
		return reply{}, err
	}
	return reply{body: okView{true}}, nil
}

// rotateAPIKey replaces the API keys. The new one is not in the answer: it is written to the state directory.
func (a *API) rotateAPIKey(w http.ResponseWriter, r *http.Request) (reply, error) {
	var body apiKeyBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	var grace time.Duration
	if body.Grace != "" {
		var err error
		if grace, err = time.ParseDuration(body.Grace); err != nil || grace < 0 || grace > maxGrace {
			return reply{}, invalid("/grace", "must be a duration from 0s to 720h, such as 1h")
		}
	}
	if err := a.Host.RotateAPIKey(r.Context(), grace); err != nil {
		return reply{}, err
	}
	return reply{body: okView{true}}, nil
}

// keyRecheck is how soon a long request notices that its key has stopped working.
const keyRecheck = time.Second

// errKeyEnded ends a request whose key has stopped working.
var errKeyEnded = refuse(http.StatusUnauthorized, "the API key stopped working during the request")

// whileKeyWorks returns the request with a context that ends when its key stops working, so that streams opened with a
// revoked key do not outlive it. The caller calls end when the request is over.
func (a *API) whileKeyWorks(r *http.Request) (_ *http.Request, end func()) {
	key, _ := keyOf(r)
	ctx, cancel := context.WithCancelCause(r.Context())
	var mu sync.Mutex
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(keyRecheck, func() {
		if !a.CheckKey(key) {
			cancel(errKeyEnded)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(keyRecheck)
		}
	})
	return r.WithContext(ctx), func() {
		cancel(nil)
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}
