package server

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/session"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/quota"
)

// Use is what a client of another protocol than HTTP does in a box.
type Use struct {
	Caller api.Caller
	Box    policy.BoxID
	Remote string // address of the client, after the name of the protocol
	What   string // for the audit trail, such as "ssh command"
	// Valid reports whether the caller's credential is still valid. The work ends when it is not; nil: immediately.
	Valid func() bool
}

// entry returns a trail entry with the source of a use.
func (u Use) entry() trail.Entry {
	return trail.Entry{KeyID: u.Caller.Key, Key: u.Caller.Name, Role: string(u.Caller.Role), Remote: u.Remote, Method: "other", Route: u.What}
}

// sessionRoute is the endpoint with the permissions of every [Use]: who may open a session may do the same over another protocol.
const sessionRoute = "openSession"

// MayUse reports whether a caller may use a box as [API.Perform] does.
func (a *API) MayUse(ctx context.Context, caller api.Caller, box policy.BoxID) bool {
	_, err := a.permitUse(api.WithCaller(ctx, caller), box)
	return err == nil
}

// permitUse returns a request with the box, unless the caller may not use it.
func (a *API) permitUse(ctx context.Context, box policy.BoxID) (*http.Request, error) {
	r := (&http.Request{Method: http.MethodGet}).WithContext(ctx)
	r.SetPathValue("id", string(box))
	return r, access.Permit(r, sessionRoute, a.Boxes, a.Snapshots)
}

// Perform does work in a box with the checks and records of a session of the API: the permissions and quotas of the caller, a running
// command among them, and the audit trail, which has an entry before the work begins and one when it has ended. The context of work
// has the caller. The map that work returns is added to the trail and must contain no secrets; it may be nil.
func (a *API) Perform(ctx context.Context, u Use, work func(context.Context) (forTrail map[string]any, err error)) error {
	ctx, end := access.While(access.WithCredential(api.WithCaller(ctx, u.Caller), u.Valid))
	defer end()
	entry := u.entry()
	ctx, leave, err := a.enterUse(ctx, u)
	if err != nil {
		a.RecordRefused(u, err)
		return err
	}
	defer leave()
	ctx = api.WithCall(ctx, api.Call{Remote: entry.Remote, Route: entry.Route})
	if a.Trail == nil {
		_, err := work(ctx)
		return err
	}
	entry.Kind, entry.Box = trail.Call, u.Box
	call, err := a.Trail.Append(entry)
	if err != nil {
		return errNoTrail
	}
	what, err := work(ctx)
	a.recordUsed(entry, call, statusOf(err), what)
	return err
}

// errNoTrail refuses work that cannot be recorded.
var errNoTrail = api.Errorf(api.ErrUnavailable, "nothing was done, because the audit trail cannot be written: see the gateway's log")

// statusOf returns the status of a result for the audit trail.
func statusOf(err error) int {
	if err == nil {
		return http.StatusOK
	}
	status, _ := problem.StatusOf(err)
	return status
}

// enterUse checks the permissions of a caller and charges its quotas until leave is called.
func (a *API) enterUse(ctx context.Context, u Use) (_ context.Context, leave func(), err error) {
	done, err := a.Quotas.Acquire(u.Caller.Holder(), quota.Requests, 1)
	if err != nil {
		return nil, nil, err
	}
	scope, end := a.Quotas.Open(u.Caller.Holder())
	leave = func() { end(); done() }
	if _, err = a.permitUse(ctx, u.Box); err == nil {
		err = scope.Acquire(quota.Commands, 1)
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return quota.WithScope(ctx, scope), leave, nil
}

// recordUsed records the end of a use. It cannot be undone, so an error is only logged.
func (a *API) recordUsed(entry trail.Entry, call uint64, status int, what map[string]any) {
	entry.Kind, entry.Call, entry.Status, entry.Time = trail.Answer, call, status, time.Time{}
	if what != nil {
		entry.Change = changeOf(what)
	}
	if _, err := a.Trail.Append(entry); err != nil {
		a.Log.Warn("the end of a session is not in the audit trail", zap.Uint64("call", call), zap.Error(err))
	}
}

// RecordRefused records a use that was refused. The entries of each key, and all entries without a key, are bounded.
func (a *API) RecordRefused(u Use, err error) {
	entry := u.entry()
	left, ok := a.refusals.count(entry.KeyID, time.Now())
	if !ok || a.Trail == nil {
		return
	}
	entry.Kind, entry.Suppressed, entry.Box = trail.Refused, left, u.Box
	entry.Status, _ = problem.StatusOf(err)
	if _, err := a.Trail.Append(entry); err != nil {
		a.Log.Warn("a refused session is not in the audit trail", zap.Error(err))
	}
}

// Sessions returns the sessions of boxes, including sessions over other protocols.
func (a *API) Sessions() *session.Endpoints { return a.sessions }
