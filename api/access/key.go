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

// keyOf returns the key of a request; two different ones count as none.
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

// keyRecheck is how soon a long request notices that its key has stopped working.
const keyRecheck = time.Second

// errKeyEnded ends a request whose key has stopped working.
var errKeyEnded = problem.Refuse(http.StatusUnauthorized, "the API key stopped working during the request")

// WhileKeyWorks returns the request with a context that ends when its key stops working, or is no longer that of the
// request's caller, so that streams opened with a revoked key do not outlive it. The caller calls end when the request is over.
func (g *Guard) WhileKeyWorks(r *http.Request) (_ *http.Request, end func()) {
	key, _ := keyOf(r)
	ctx, cancel := context.WithCancelCause(r.Context())
	var mu sync.Mutex
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(keyRecheck, func() {
		if caller, ok := g.find(key); !ok || caller != api.CallerOf(r.Context()) {
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
