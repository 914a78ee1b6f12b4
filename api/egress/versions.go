package egress

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// Versions gives access to the history of the policies of boxes, also of deleted ones. Errors are as in package api.
type Versions interface {
	// PolicyVersions returns the versions that q selects, the latest first.
	PolicyVersions(ctx context.Context, id policy.BoxID, q api.VersionQuery) (api.PolicyVersions, error)
	// PolicyVersion returns one version with its text. The error for a version that the history does not have names the
	// reason.
	PolicyVersion(ctx context.Context, id policy.BoxID, number uint64) (api.PolicyDocument, error)
}

// versionsQuery selects versions of a policy.
type versionsQuery struct {
	Before int64  `json:"before,omitempty" doc:"only versions with a lower number" example:"7"`
	Limit  int64  `json:"limit,omitempty" doc:"at most so many versions, at most 500; absent: 100" example:"20"`
	At     string `json:"at,omitempty" doc:"only the version that was in force at a time, given like since of decisions" example:"24h"`
}

// Sizes of a page of versions.
const (
	defaultVersions = 100
	mostVersions    = 500
)

// versions lists the versions of the policy of a box.
func (e *Endpoints) versions(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	id, err := e.pastBox(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var query versionsQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	q := api.VersionQuery{Before: uint64(query.Before), Most: defaultVersions}
	if query.Limit > mostVersions {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "limit" must be at most %d`, mostVersions)
	}
	if query.Limit > 0 {
		q.Most = int(query.Limit)
	}
	if query.At != "" {
		if q.At, err = api.ParseSince(query.At, time.Now()); err != nil {
			return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, `query parameter "at" must be a time (2026-01-02T15:04:05Z), Unix seconds or a duration back from now (10m, 7d)`)
		}
	}
	list, err := e.Versions.PolicyVersions(r.Context(), id, q)
	if caller := api.CallerOf(r.Context()); !seesSettings(caller) {
		for i := range list.Versions {
			hideRemote(caller, list.Versions[i].KeyID, &list.Versions[i].Remote)
		}
	}
	return rest.Reply{Body: list}, err
}

// seesSettings reports whether a key may read settings for all boxes, and the addresses of other callers.
func seesSettings(c api.Caller) bool {
	return c.Role == api.RoleAdmin || c.Role == api.RoleReader || c.Role == api.RoleAuditor
}

// hideRemote removes the address, or the user of the host, that another key made a change from.
func hideRemote(c api.Caller, keyID string, remote *string) {
	if keyID == "" || keyID != c.Key {
		*remote = ""
	}
}

// version returns one version of the policy of a box.
func (e *Endpoints) version(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	id, err := e.pastBox(r)
	if err != nil {
		return rest.Reply{}, err
	}
	number, err := strconv.ParseUint(r.PathValue("version"), 10, 64)
	if err != nil || number == 0 {
		return rest.Reply{}, problem.Refuse(http.StatusNotFound, "%q is not the version of a policy: it is a number from 1, as policy_version in decisions", problem.Clip(r.PathValue("version")))
	}
	doc, err := e.Versions.PolicyVersion(r.Context(), id, number)
	if caller := api.CallerOf(r.Context()); !seesSettings(caller) {
		doc.GlobalRules, doc.Ceilings = nil, nil
		hideRemote(caller, doc.KeyID, &doc.Remote)
		doc.HeaderRules = slices.Clone(doc.HeaderRules)
		for i := range doc.HeaderRules {
			hideRemote(caller, doc.HeaderRules[i].KeyID, &doc.HeaderRules[i].Remote)
		}
	}
	return rest.Reply{Body: doc}, err
}

// pastBox returns the ID of the box in the path of a request. Callers who see all boxes can give the ID of a deleted box.
func (e *Endpoints) pastBox(r *http.Request) (policy.BoxID, error) {
	box, err := rest.Box(r, e.Boxes)
	id := r.PathValue("id")
	if errors.Is(err, api.ErrNotFound) && rest.IsBoxName(id) && api.CallerOf(r.Context()).Sees(api.Box{ID: policy.BoxID(id)}) {
		if _, past := e.Versions.PolicyVersions(r.Context(), policy.BoxID(id), api.VersionQuery{Most: 1}); past == nil {
			return policy.BoxID(id), nil
		}
	}
	return box.ID, err
}
