package access

import (
	"context"
	"net/http"
	"sync"
	"time"

	"boxgate/api/problem"
)

// keyRecheck is the interval at which long work checks that its credential is still valid.
const keyRecheck = time.Second

// ErrKeyEnded ends work whose API key, or another credential that depends on it, is no longer valid. Work without a credential ends
// with it too.
var ErrKeyEnded = problem.Refuse(http.StatusUnauthorized, "the API key stopped working")

// credentialKey is the context key of the credential.
type credentialKey struct{}

// WithCredential returns a context that carries the credential of admitted work: valid reports whether it is still valid,
// for the same caller. Long work calls it each second, from any goroutine, and also after the request has ended.
func WithCredential(ctx context.Context, valid func() bool) context.Context {
	return context.WithValue(ctx, credentialKey{}, valid)
}

// credentialOf returns the credential of admitted work, or nil.
func credentialOf(ctx context.Context) (valid func() bool) {
	valid, _ = ctx.Value(credentialKey{}).(func() bool)
	return valid
}

// While returns a context for a request, which ends with [ErrKeyEnded] within a second after the credential of ctx has. The caller
// must call end.
func While(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := watch(ctx, cancel, credentialOf(ctx), ErrKeyEnded)
	return ctx, func() { cancel(nil); stop() }
}

// WhileValid returns a context for a request, which ends with cause within a second after valid reports false, as it may from any
// goroutine. The caller must call end.
func WhileValid(ctx context.Context, valid func() bool, cause error) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := watch(ctx, cancel, valid, cause)
	return ctx, func() { cancel(nil); stop() }
}

// Outlive returns a context for work that outlives the request that began it, such as a command: it has the values of ctx, but does
// not end with it. It ends with [ErrKeyEnded] within a second after the credential of ctx has: a caller whose key was stolen or has
// expired could otherwise go on by work begun before. The caller must call end after the work.
func Outlive(ctx context.Context) (_ context.Context, end context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := watch(ctx, cancel, credentialOf(ctx), ErrKeyEnded)
	return ctx, func(cause error) { cancel(cause); stop() }
}

// watch cancels a context with cause when valid reports false, until stop is called. If valid is nil, it does so immediately.
func watch(ctx context.Context, cancel context.CancelCauseFunc, valid func() bool, cause error) (stop func()) {
	if valid == nil {
		cancel(cause)
		return func() {}
	}
	var mu sync.Mutex
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(keyRecheck, func() {
		if ctx.Err() == nil && !valid() {
			cancel(cause)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(keyRecheck)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}
