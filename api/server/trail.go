package server

import (
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/quota"
)

// Trail stores the entries of the API's audit trail.
type Trail interface {
	// Append returns the number of an entry once it is on disk.
	Append(e trail.Entry) (uint64, error)
	// AppendAll appends entries and returns the number of the first once all are on disk.
	AppendAll(list []trail.Entry) (uint64, error)
}

// permitted serves a route to the keys that may call it. It writes calls that change anything to the audit trail: the
// call before it executes, and its result before it is answered.
func (a *API) permitted(rt rest.Route) http.Handler {
	serve := a.answers.Serve(rt)
	if rt.Public {
		return serve
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := access.Permit(r, rt.ID, a.Boxes, a.Snapshots); err != nil {
			a.recordRefusal(r, rt.Pattern(), err)
			a.answers.Fail(w, r, err)
			return
		}
		if err := chargeCommand(r, rt.ID); err != nil {
			a.recordRefusal(r, rt.Pattern(), err)
			a.answers.Fail(w, r, err)
			return
		}
		if !access.Changes(rt.ID) {
			serve.ServeHTTP(w, r)
			return
		}
		entry := a.entryOf(r, rt.Pattern())
		r = r.WithContext(api.WithCall(r.Context(), api.Call{Remote: entry.Remote, Route: entry.Route}))
		own, ok := w.(*rest.Writer)
		if a.Trail == nil || !ok {
			serve.ServeHTTP(w, r)
			return
		}
		entry.Kind, entry.Box = trail.Call, a.boxOf(r)
		again := repeatOf(r, entry)
		if repeated[rt.ID] && a.repeats.has(again, time.Now()) {
			serve.ServeHTTP(w, r)
			return
		}
		call, err := a.Trail.Append(entry)
		if err != nil {
			a.answers.Fail(w, r, &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "nothing was changed, because the audit trail cannot be written: " +
				"make room on the disk of state_dir, or see the gateway's log for what it lacks"})
			return
		}
		if repeated[rt.ID] {
			a.repeats.add(again, time.Now())
		}
		own.Record = func(status int, change *rest.Change) error { return a.recordAnswer(entry, call, status, change) }
		defer own.End()
		serve.ServeHTTP(w, r)
	})
}

// chargeCommand charges the command started by a request to the quota of its key until the command ends. It runs before the
// audit trail, which bounds only refusals. A request that reconnects to a session starts no command.
func chargeCommand(r *http.Request, route string) error {
	if !access.Runs(route) || r.URL.Query().Get("session") != "" {
		return nil
	}
	return quota.ScopeOf(r.Context()).Acquire(quota.Commands, 1)
}

// recordAnswer records the result of a call.
func (a *API) recordAnswer(e trail.Entry, call uint64, status int, change *rest.Change) error {
	e.Kind, e.Call, e.Status, e.Time = trail.Answer, call, status, time.Time{}
	if change == nil {
		_, err := a.Trail.Append(e)
		return err
	}
	list := []trail.Entry{changed(e, *change)}
	e.Kind, e.Status, e.Box = trail.Policy, 0, ""
	for _, c := range change.Also {
		list = append(list, changed(e, c))
	}
	_, err := a.Trail.AppendAll(list)
	return err
}

// changed adds a change to an entry.
func changed(e trail.Entry, c rest.Change) trail.Entry {
	e.PolicyVersion = c.PolicyVersion
	if c.Box != "" {
		e.Box = c.Box
	}
	if c.What != nil {
		e.Change = changeOf(c.What)
	}
	return e
}

// changeOf returns a change for a trail entry.
func changeOf(what any) trail.Change {
	data, err := json.Marshal(what)
	if err != nil {
		return trail.Change{}
	}
	return trail.Change{RawMessage: data}
}

// entryOf returns a trail entry with the source and the route of a request. It contains neither path nor query, because
// callers choose their content.
func (a *API) entryOf(r *http.Request, pattern string) trail.Entry {
	caller := api.CallerOf(r.Context())
	return trail.Entry{KeyID: caller.Key, Key: caller.Name, Role: string(caller.Role), Remote: a.remoteOf(r), Method: methodOf(r), Route: pattern}
}

// methodOf returns the method if it is a known one, or "other".
func methodOf(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return r.Method
	}
	return "other"
}

// remoteOf returns the address of the caller, or "unix" with the user at the other end of the socket. For requests of the dashboard
// it is the address of the browser.
func (a *API) remoteOf(r *http.Request) string {
	if browser, ok := access.Dashboard(r.Context()); ok {
		return "dashboard, " + browser
	}
	if source, ok := access.Peer(r.Context()); ok {
		return source
	}
	if a.Peer != nil {
		if peer, ok := a.Peer(r); ok {
			return "unix, " + peer.String()
		}
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && at.Network() != "unix" {
		return "unknown" // the client has disconnected
	}
	return "unix"
}

// boxOf returns the ID of the box in the path of a request, or "".
func (a *API) boxOf(r *http.Request) policy.BoxID {
	id := r.PathValue("id")
	if id == "" {
		return ""
	}
	box, err := rest.FindBox(r.Context(), a.Boxes, id)
	if err != nil {
		return ""
	}
	return box.ID
}

// recordRefusal records that a call was refused. The number of entries per key is bounded, so that one key cannot displace
// the others.
func (a *API) recordRefusal(r *http.Request, pattern string, err error) {
	if a.Trail == nil {
		return
	}
	e := a.entryOf(r, pattern)
	left, ok := a.refusals.count(e.KeyID, time.Now())
	if !ok {
		return
	}
	e.Kind, e.Suppressed = trail.Refused, left
	e.Status, _ = problem.StatusOf(err)
	if _, err := a.Trail.Append(e); err != nil {
		a.Log.Warn("a refused admin request is not in the audit trail", zap.Error(err))
	}
}

// RecordSession writes the end of an attempt to sign in at the dashboard to the audit trail, or of signing out. A zero caller
// stands for an attempt without a valid key. On an error, the sign-in must fail.
func (a *API) RecordSession(r *http.Request, route string, caller api.Caller, status int) error {
	if a.Trail == nil {
		return nil
	}
	e := trail.Entry{KeyID: caller.Key, Key: caller.Name, Role: string(caller.Role), Remote: "dashboard, " + a.remoteOf(r), Method: methodOf(r), Route: route}
	if status >= http.StatusBadRequest {
		left, ok := a.refusals.count(e.KeyID, time.Now())
		if !ok {
			return nil
		}
		e.Kind, e.Status, e.Suppressed = trail.Refused, status, left
		_, err := a.Trail.Append(e)
		return err
	}
	e.Kind = trail.Call
	call, err := a.Trail.Append(e)
	if err != nil {
		return err
	}
	return a.recordAnswer(e, call, status, nil)
}

// maxRefusals is the number of refusals recorded per key and minute.
const maxRefusals = 60

// refusals counts the refusals of each key in the current minute. The zero value is empty. Safe for concurrent use.
type refusals struct {
	mu         sync.Mutex
	since      time.Time
	counts     map[string]uint64
	suppressed map[string]uint64 // suppressed since the last recorded one
}

// count reports whether to record another refusal of the key, and how many were suppressed before it. All invalid keys
// share one counter, so there are at most as many counters as keys.
func (c *refusals) count(key string, now time.Time) (left uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suppressed == nil {
		c.suppressed = map[string]uint64{}
	}
	if c.counts == nil || now.Sub(c.since) >= time.Minute {
		c.counts, c.since = map[string]uint64{}, now
	}
	if c.counts[key]++; c.counts[key] > maxRefusals {
		c.suppressed[key]++
		return 0, false
	}
	left = c.suppressed[key]
	delete(c.suppressed, key)
	return left, true
}
