// Package trail serves the audit trail of the API: its entries, and the check of its integrity. Only admin and auditor keys
// may read it.
package trail

import (
	"context"
	"net/http"
	"reflect"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/audit/trail"
	"boxgate/policy"
)

// Host gives access to the trail.
type Host interface {
	// ReadTrail calls do with each matching entry, oldest first. With follow, it continues with new entries until ctx
	// ends.
	ReadTrail(ctx context.Context, f trail.Filter, follow bool, do func(line []byte) error) error
	// VerifyTrail reports whether entries of the trail were changed, inserted or removed.
	VerifyTrail(ctx context.Context) (trail.Report, error)
}

// Endpoints serves the trail.
type Endpoints struct {
	Boxes    rest.Finder
	Host     Host
	Stopping <-chan struct{} // closed when the server shuts down, which ends streams
}

// query selects entries.
type query struct {
	Since         string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now" example:"24h"`
	Until         string `json:"until,omitempty" doc:"like since; only entries before it" example:"2026-11-02"`
	Key           string `json:"key,omitempty" doc:"only calls with this API key, by its ID or name"`
	Box           string `json:"box,omitempty" doc:"only calls about this box: its ID, or the name of an existing box"`
	PolicyVersion int64  `json:"policy_version,omitempty" doc:"with box: only the change that led to this version of its policy, as numbered in decisions"`
	Follow        bool   `json:"follow,omitempty" doc:"continue with new entries"`
}

// line is an entry with its hash.
type line struct {
	trail.Entry
	Hash string `json:"hash" doc:"SHA-256 of the line without this field, in hex"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (line) SchemaName() string { return "auditEntry" }

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/audit", ID: "listTrail", Summary: "The audit trail: calls that change state, their results, and refused calls; each line contains the hash of the previous one", Query: reflect.TypeFor[query](), Produces: []string{stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[line]()}, Handle: e.list},
		{Method: "GET", Path: "/v2/audit/verify", ID: "verifyTrail", Summary: "Whether entries of the audit trail were changed, inserted or removed", Response: reflect.TypeFor[trail.Report](), Handle: e.verify},
	}
}

func (e *Endpoints) verify(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	report, err := e.Host.VerifyTrail(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: report}, nil
}

func (e *Endpoints) list(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q query
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	if q.PolicyVersion != 0 && q.Box == "" {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "policy_version" needs "box": each box counts its own`)
	}
	f := trail.Filter{Key: q.Key, Box: policy.BoxID(q.Box), PolicyVersion: uint64(max(q.PolicyVersion, 0))}
	if q.Box != "" {
		if box, err := e.Boxes.Box(r.Context(), q.Box); err == nil {
			f.Box = box.ID
		}
	}
	window, err := rest.Window(q.Since, q.Until)
	if err != nil {
		return rest.Reply{}, err
	}
	f.Since, f.Until = window.Since, window.Until
	if q.Follow && q.Until != "" {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "until" is for entries that exist; leave out "follow"`)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-ctx.Done():
		case <-e.Stopping:
			cancel()
		}
	}()
	w.Header().Set("Content-Type", stream.NDJSON)
	w.WriteHeader(http.StatusOK)
	out := rest.NewPaced(w)
	defer out.Close()
	_ = out.Flush()
	err = e.Host.ReadTrail(ctx, f, q.Follow, func(line []byte) error {
		_, err := out.Write(append(line, '\n'))
		if err == nil && q.Follow {
			err = out.Flush()
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		panic(http.ErrAbortHandler) // otherwise the client would take the truncated response for a complete one
	}
	return rest.Reply{Written: true}, nil
}
