// Package report serves what an auditor asks for: a report on a window of time, and the uses of one secret. It reads decisions
// and the audit trail, and sums them up ([boxgate/audit/report]).
package report

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/audit"
	"boxgate/audit/report"
	"boxgate/audit/trail"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/quota"
)

// Boxes finds and lists the boxes.
type Boxes interface {
	rest.Finder
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f api.BoxFilter) ([]api.Box, error)
}

// Decisions gives access to the decisions on disk.
type Decisions interface {
	// SearchEvents calls begin with the time since which the log of the filter's boxes is complete, and then do for each
	// matching decision, oldest first. If the gateway keeps no decisions on disk, the error is an ErrConflict.
	SearchEvents(ctx context.Context, f api.EventSearch, begin func(whole time.Time), do func(audit.Event) error) error
}

// Trail gives access to the audit trail.
type Trail interface {
	// ReadTrail calls do with each matching entry, oldest first. With follow, it continues with new entries until ctx
	// ends.
	ReadTrail(ctx context.Context, f trail.Filter, follow bool, do func(line []byte) error) error
	// VerifyTrail reports whether entries of the trail were changed, inserted or removed.
	VerifyTrail(ctx context.Context) (trail.Report, error)
}

// Secrets gives access to the names of the configured secrets.
type Secrets interface {
	// DerivedSecrets returns the names of the secrets that are made with a secret, sorted. known reports whether the
	// configuration has the secret.
	DerivedSecrets(name string) (derived []string, known bool)
}

// Policies gives access to the history of the policies of boxes.
type Policies interface {
	// PolicyVersion returns one version with its text. The error for a version that the history does not have names the
	// reason.
	PolicyVersion(ctx context.Context, id policy.BoxID, number uint64) (api.PolicyDocument, error)
}

// Endpoints serves reports. Create it with [New].
type Endpoints struct {
	boxes     Boxes
	decisions Decisions
	trail     Trail
	secrets   Secrets
	policies  Policies
	operators chan struct{} // reports of admin keys
	others    chan struct{} // reports of other keys
	turns     quota.Turns   // of other keys: one report each
}

// maxReports is how many reports are made or sent at the same time, which bounds their memory. Admin keys and other keys have this
// number each.
const maxReports = 2

// New returns the endpoints.
func New(boxes Boxes, decisions Decisions, trail Trail, secrets Secrets, policies Policies) *Endpoints {
	return &Endpoints{
		boxes: boxes, decisions: decisions, trail: trail, secrets: secrets, policies: policies,
		operators: make(chan struct{}, maxReports), others: make(chan struct{}, maxReports),
	}
}

// admit waits until the caller may have a report made. The place is free again when ctx, that of the request, ends, after the report
// was sent: a slow client holds its memory until then. Admin keys do not wait for others, and of the others each has one place.
func (e *Endpoints) admit(ctx context.Context) error {
	places, leave := e.operators, func() {}
	if h := api.CallerOf(ctx).Holder(); !h.Operator {
		var err error
		if leave, err = e.turns.Enter(ctx, h.ID); err != nil {
			return err
		}
		places = e.others
	}
	select {
	case places <- struct{}{}:
		context.AfterFunc(ctx, func() { <-places; leave() })
		return nil
	case <-ctx.Done():
		leave()
		return ctx.Err()
	}
}

// reportQuery selects the records of a report.
type reportQuery struct {
	Since string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now; absent: 24h" example:"2026-11-01"`
	Until string `json:"until,omitempty" doc:"like since; only records before it; absent: now" example:"2026-11-02"`
	Box   string `json:"box,omitempty" doc:"only this box: its ID, also of a deleted box, or a name, also of deleted boxes"`
}

// usesQuery selects the uses of a secret.
type usesQuery struct {
	Since string `json:"since,omitempty" doc:"a time, a date (UTC), Unix seconds, or a duration back from now; absent: 24h" example:"2026-11-01"`
	Until string `json:"until,omitempty" doc:"like since; only uses before it; absent: now" example:"2026-11-02"`
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/audit/report", ID: "getReport", Summary: "What left, how much, under which version of the policy, who changed or approved it, which secret was used where, and what was refused", Query: reflect.TypeFor[reportQuery](), Response: reflect.TypeFor[report.Report](), Handle: e.report},
		{Method: "GET", Path: "/v2/secrets/{name}/uses", ID: "listSecretUses", Summary: "Which boxes used a secret of the configuration, for which requests", Query: reflect.TypeFor[usesQuery](), Response: reflect.TypeFor[report.Uses](), Handle: e.uses},
	}
}

// window returns the time between two texts; the last day if they are empty.
func window(since, until string) (report.Query, error) {
	w, err := rest.Window(since, until)
	if err != nil {
		return report.Query{}, err
	}
	now := time.Now().UTC()
	if w.Until.IsZero() || w.Until.After(now) {
		w.Until = now
	}
	if w.Since.IsZero() {
		w.Since = w.Until.Add(-24 * time.Hour)
	}
	return report.Query{Since: w.Since.UTC(), Until: w.Until.UTC()}, nil
}

func (e *Endpoints) report(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q reportQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	query, err := window(q.Since, q.Until)
	if err != nil {
		return rest.Reply{}, err
	}
	facts := report.Facts{Gateway: buildinfo.Get().Version, Now: time.Now().UTC(), Asked: q.Box}
	if facts.Boxes, err = e.names(r.Context()); err != nil {
		return rest.Reply{}, err
	}
	if q.Box != "" {
		query.Box, query.Name = e.find(r.Context(), q.Box)
	}
	if err := e.admit(r.Context()); err != nil {
		return rest.Reply{}, err
	}
	builder := report.New(query)
	if err := e.collect(r.Context(), builder, query, &facts); err != nil {
		return rest.Reply{}, err
	}
	facts.Text = func(id policy.BoxID, version uint64) json.RawMessage { return e.text(r.Context(), id, version) }
	return rest.Reply{Body: builder.Report(facts)}, nil
}

// text returns a version of the policy of a box in full with its temporary entries, or nil if the gateway does not have it.
func (e *Endpoints) text(ctx context.Context, id policy.BoxID, version uint64) json.RawMessage {
	if ctx.Err() != nil {
		return nil // the caller has disconnected
	}
	document, err := e.policies.PolicyVersion(ctx, id, version)
	if err != nil {
		return nil // the report has the change, and shows that the text is missing
	}
	full := struct {
		Policy  any             `json:"policy"`
		Entries []api.PastLease `json:"entries,omitempty"`
	}{document.Policy, document.Entries}
	text, err := json.Marshal(full)
	if err != nil {
		return nil
	}
	return text
}

// names returns the names of the existing boxes.
func (e *Endpoints) names(ctx context.Context) (map[policy.BoxID]string, error) {
	list, err := e.boxes.Boxes(ctx, api.BoxFilter{})
	if err != nil {
		return nil, err
	}
	names := make(map[policy.BoxID]string, len(list))
	for _, b := range list {
		names[b.ID] = b.Name
	}
	return names, nil
}

// find returns the ID of an existing box, else the text as the name or ID of deleted ones.
func (e *Endpoints) find(ctx context.Context, text string) (policy.BoxID, string) {
	if b, err := e.boxes.Box(ctx, text); err == nil {
		return b.ID, ""
	}
	return "", text
}

func (e *Endpoints) uses(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var q usesQuery
	if err := rest.Query(r, &q); err != nil {
		return rest.Reply{}, err
	}
	query, err := window(q.Since, q.Until)
	if err != nil {
		return rest.Reply{}, err
	}
	secret := r.PathValue("name")
	if !name.IsSecretName(secret) && !name.IsKeySecret(secret) {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, "%q is not the name of a secret", problem.Clip(secret))
	}
	derived, known := e.secrets.DerivedSecrets(secret)
	query.Secrets = append([]string{secret}, derived...)
	facts := report.Facts{Now: time.Now().UTC()}
	if err := e.admit(r.Context()); err != nil {
		return rest.Reply{}, err
	}
	builder := report.New(query)
	if err := e.collect(r.Context(), builder, query, &facts); err != nil {
		return rest.Reply{}, err
	}
	uses := builder.Uses(facts)
	if !known && len(uses.Uses)+len(uses.Changes) == 0 { // a removed one may have uses
		return rest.Reply{}, api.Errorf(api.ErrNotFound, "the configuration has no secret %q, and the records do not mention it", problem.Clip(secret))
	}
	return rest.Reply{Body: uses}, nil
}

// collect reads the records into a builder.
func (e *Endpoints) collect(ctx context.Context, b *report.Builder, q report.Query, facts *report.Facts) error {
	if q.Name != "" {
		if err := e.entries(ctx, trail.Filter{}, b.Name); err != nil {
			return err
		}
	}
	search := api.EventSearch{Box: q.Box, Since: q.Since, Until: q.Until}
	err := e.decisions.SearchEvents(ctx, search, func(whole time.Time) { facts.CompleteSince = whole.UTC() }, func(event audit.Event) error {
		b.Decision(&event)
		return nil
	})
	if err != nil {
		return err
	}
	filter := trail.Filter{Until: q.Until}
	if q.Secrets != nil {
		filter.Since = q.Since
	}
	if err := e.entries(ctx, filter, b.Entry); err != nil {
		return err
	}
	verified, err := e.trail.VerifyTrail(ctx)
	facts.Trail = report.Integrity{Entries: verified.Entries, Head: verified.Head.Hash, Problems: verified.Problems}
	return err
}

// entries passes on the entries of the trail. Lines that cannot be read are left to the check of the trail.
func (e *Endpoints) entries(ctx context.Context, f trail.Filter, do func(trail.Entry)) error {
	err := e.trail.ReadTrail(ctx, f, false, func(line []byte) error {
		var entry trail.Entry
		if json.Unmarshal(line, &entry) == nil {
			do(entry)
		}
		return nil
	})
	if err != nil && ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}
