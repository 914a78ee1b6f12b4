package rules

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/store"
	"boxgate/store/history"
)

// Versions reads the history of the policies of boxes, also of deleted ones. Safe for concurrent use.
type Versions struct {
	store store.History
}

// NewVersions returns a reader of a store's history.
func NewVersions(s store.History) *Versions { return &Versions{s} }

// PolicyVersions implements the Versions of [boxgate/api/egress].
func (h *Versions) PolicyVersions(_ context.Context, id policy.BoxID, q api.VersionQuery) (api.PolicyVersions, error) {
	line := history.ID{Owner: string(id), Kind: history.Policy}
	list, err := h.store.Versions(line, q.Before, q.Most)
	if !q.At.IsZero() {
		list, err = h.store.InForceAt(line, q.At)
	}
	if err != nil {
		return api.PolicyVersions{}, notInHistory(id, err)
	}
	out := api.PolicyVersions{Box: id, Versions: []api.PolicyVersion{}, Dropped: list.Dropped, DeletedAt: list.Deleted, More: list.More}
	until := list.Until
	for _, v := range list.Versions {
		out.Versions = append(out.Versions, shownVersion(v, until, list.Line))
		if v.Result == history.InForce {
			until = v.Since
		}
	}
	return out, nil
}

// shownVersion converts a version for the API. until is when the next one came into force; zero: it is the last.
func shownVersion(v history.Version, until time.Time, l history.Line) api.PolicyVersion {
	shown := api.PolicyVersion{
		Version: v.Number, MadeAt: v.At, Cause: string(v.Cause), KeyID: v.KeyID, Key: v.Key, Role: v.Role, Remote: v.Remote, Call: v.Call,
		Result: string(v.Result), Named: v.Named, Leases: len(v.Leases), Digest: v.Digest,
	}
	if v.Result == history.InForce {
		if shown.Since, shown.Until = v.Since, until; until.IsZero() {
			shown.Until = l.Deleted
		}
	}
	return shown
}

// mostBeside is the maximum number of versions of header rules, and of ceilings, that are shown beside one version of a policy.
const mostBeside = 64

// PolicyVersion implements the Versions of [boxgate/api/egress].
func (h *Versions) PolicyVersion(_ context.Context, id policy.BoxID, number uint64) (api.PolicyDocument, error) {
	v, text, err := h.store.Version(history.ID{Owner: string(id), Kind: history.Policy}, number)
	if err != nil {
		return api.PolicyDocument{}, h.missing(id, number, err)
	}
	line, next, err := h.store.Next(history.ID{Owner: string(id), Kind: history.Policy}, number)
	if err != nil {
		return api.PolicyDocument{}, err
	}
	doc := api.PolicyDocument{Box: id}
	if err := json.Unmarshal(text, &doc.Policy); err != nil {
		return api.PolicyDocument{}, err
	}
	doc.PolicyVersion = shownVersion(v, next, line)
	for _, l := range v.Leases {
		action := api.LeaseEntry{Allow: l.Allow, Audit: l.Audit}.Action()
		doc.Entries = append(doc.Entries, api.PastLease{Action: action, Entry: l.Entry, StartedAt: l.StartedAt, ExpiresAt: l.ExpiresAt, KeyID: l.Key})
	}
	since, until := doc.Since, doc.Until
	if since.IsZero() { // it was in force for a moment at most
		since, until = v.At, v.At
	}
	err = errors.Join(
		h.rulesDuring(history.ID{Owner: string(id), Kind: history.Headers}, since, until, &doc.HeaderRules),
		h.rulesDuring(history.ID{Owner: history.Everyone, Kind: history.Headers}, since, until, &doc.GlobalRules),
		h.ceilingsDuring(since, until, &doc.Ceilings),
	)
	return doc, err
}

// rulesDuring appends the header rules of a line that were in force between two times.
func (h *Versions) rulesDuring(id history.ID, since, until time.Time, into *[]api.PastRules) error {
	list, texts, err := h.store.During(id, since, until, mostBeside)
	for i, v := range list {
		rules := api.PastRules{Version: v.Number, Since: v.Since, KeyID: v.KeyID, Key: v.Key, Remote: v.Remote}
		err = errors.Join(err, json.Unmarshal(texts[i], &rules.Rules))
		*into = append(*into, rules)
	}
	return err
}

// ceilingsDuring appends the ceilings that were in force between two times.
func (h *Versions) ceilingsDuring(since, until time.Time, into *[]api.PastCeiling) error {
	list, texts, err := h.store.During(history.ID{Owner: history.Everyone, Kind: history.Ceiling}, since, until, mostBeside)
	for i, v := range list {
		ceiling := api.PastCeiling{Version: v.Number, Since: v.Since}
		err = errors.Join(err, json.Unmarshal(texts[i], &ceiling.Policy))
		*into = append(*into, ceiling)
	}
	return err
}

// missing returns the error for a version that the history does not have, with the reason.
func (h *Versions) missing(id policy.BoxID, number uint64, err error) error {
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	list, found := h.store.Versions(history.ID{Owner: string(id), Kind: history.Policy}, 0, 1)
	switch {
	case found != nil:
		return notInHistory(id, found)
	case number > list.Last:
		return api.Errorf(api.ErrNotFound, "the policy of box %s has had no version %d yet; the last is %d", id, number, list.Last)
	case list.Dropped > 0:
		return api.Errorf(api.ErrNotFound, "version %d of the policy of box %s is not in its history: %d versions were removed, because the history is bounded", number, id, list.Dropped)
	}
	return api.Errorf(api.ErrNotFound, "version %d of the policy of box %s is not in its history: it was set before the history began, or could not be stored", number, id)
}

// notInHistory returns the error for a box without a history.
func notInHistory(id policy.BoxID, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.ErrNotFound, "there is no history of a box %s; that of a deleted box is kept as long as its decisions", id)
	}
	return err
}

// expiryInterval is the time between two removals of the histories of deleted boxes.
const expiryInterval = time.Hour

// Expire removes the histories of boxes that were deleted longer ago than keep, now and every hour until ctx is done.
// failed is called with errors.
func (h *Versions) Expire(ctx context.Context, keep time.Duration, failed func(error)) {
	for {
		if err := h.store.Expire(time.Now().Add(-keep)); err != nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(expiryInterval):
		}
	}
}
