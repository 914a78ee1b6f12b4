package server

import (
	"net/http"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/e2b/envd"
	"boxgate/api/rest"
	"boxgate/audit/trail"
	"boxgate/policy"
)

// gate admits calls with the credential of one box, each as the endpoint of the API that does the same. It implements [envd.Gate].
type gate struct{ api *API }

// Begin implements [envd.Gate].
func (g gate) Begin(r *http.Request, c envd.Call) (_ *http.Request, end func(error), err error) {
	a := g.api
	r = r.WithContext(api.WithCaller(r.Context(), c.Caller))
	r, leave, err := a.openScope(r, c.Caller.Holder())
	if err != nil {
		a.recordRefusal(r, c.Name, err)
		return nil, nil, err
	}
	r.SetPathValue("id", string(c.Box))
	if err = access.Permit(r, c.Route, a.Boxes, a.Snapshots); err == nil {
		err = chargeCommand(r, c.Route)
	}
	if err != nil {
		leave()
		a.recordRefusal(r, c.Name, err)
		return nil, nil, err
	}
	entry := a.entryOf(r, c.Name)
	record := func(error) {}
	if access.Changes(c.Route) {
		ctx := api.WithCall(r.Context(), api.Call{Remote: entry.Remote, Route: entry.Route})
		if record, err = a.recordCall(r, entry, c); err != nil {
			leave()
			return nil, nil, err
		}
		r = r.WithContext(ctx)
	}
	ctx, stop := access.While(access.WithCredential(r.Context(), c.Valid))
	return r.WithContext(ctx), func(err error) { stop(); record(err); leave() }, nil
}

// recordCall writes a call to the audit trail before it is executed. The returned function writes its result.
func (a *API) recordCall(r *http.Request, entry trail.Entry, c envd.Call) (end func(error), err error) {
	entry.Kind, entry.Box = trail.Call, c.Box
	again := repeatOf(r, entry)
	if a.Trail == nil || repeated[c.Route] && a.repeats.has(again, time.Now()) {
		return func(error) {}, nil
	}
	call, err := a.Trail.Append(entry)
	if err != nil {
		a.Log.Error("the audit trail cannot be written", zap.Error(err))
		return nil, errNoTrail
	}
	if repeated[c.Route] {
		a.repeats.add(again, time.Now())
	}
	return func(err error) { a.recordUsed(entry, call, statusOf(err), nil) }, nil
}

// Refused implements [envd.Gate].
func (g gate) Refused(r *http.Request, name string, err error) { g.api.recordRefusal(r, name, err) }

// Sandbox returns a handler that serves what a sandbox of E2B's dialect serves, for the box with this ID, whatever names the requests have;
// nil if the dialect is off.
func (a *API) Sandbox(box policy.BoxID) http.Handler {
	if a.dialect == nil {
		return nil
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := &rest.Writer{ResponseWriter: rw, Silence: a.Silence}
		defer a.answers.Recover(w, r)
		a.dialect.sandboxes.ServeBox(w, r, string(box))
	})
}
