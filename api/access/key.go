package access

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
)

// keyOf returns the key of a request. A request with two different keys counts as one without a key.
func keyOf(r *http.Request) (string, bool) {
	keys := slices.Clone(r.Header.Values(api.KeyHeader))
	for _, v := range r.Header.Values("Authorization") {
		scheme, token, _ := strings.Cut(v, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", false
		}
		keys = append(keys, strings.TrimSpace(token))
	}
	keys = slices.Compact(keys)
	if len(keys) != 1 || keys[0] == "" || len(keys[0]) > 512 {
		return "", false
	}
	return keys[0], true
}

// keyRecheck is the interval at which a long request checks that its key is still valid.
const keyRecheck = time.Second

// errKeyEnded ends a request whose key is no longer valid.
var errKeyEnded = problem.Refuse(http.StatusUnauthorized, "the API key stopped working during the request")

// WhileKeyWorks returns the request with a context that ends when its key is no longer valid or belongs to another
// caller, so that streams do not outlive a revoked key. The caller must call end after the request.
func (g *Guard) WhileKeyWorks(r *http.Request) (_ *http.Request, end func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	var mu sync.Mutex
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(keyRecheck, func() {
		if caller, ok := g.callerOf(r); !ok || caller != api.CallerOf(r.Context()) {
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
