package boxes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/elsewhere"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// The placements of a new box in a fleet.
const (
	PlacementHere   = "here"   // on the host that is asked
	PlacementSpread = "spread" // on the emptier of two hosts
)

// createQuery places a new box.
type createQuery struct {
	Placement string `json:"placement,omitempty" doc:"the host for the box in a fleet: this one, or the emptier of two random ones; absent: fleet.placement of the configuration" enum:"here spread" example:"spread"`
}

// listed is a box in a list.
type listed struct {
	createdAt int64 // Unix seconds; 0: not known
	view      any
}

// Bounds of the boxes that a list takes from the directory, for hosts that did not answer.
const (
	directoryTime = 5 * time.Second // for all of them, with the answers
	maxAbsent     = 10_000          // boxes
)

// withOthers adds the boxes of other hosts to the list, oldest first. If a host did not answer, callers who see every box see
// its entries in the directory, with status unreachable. For others it is not known which of them they see.
func (e *Endpoints) withOthers(w http.ResponseWriter, r *http.Request, own []boxView, filter api.BoxFilter) []any {
	all := make([]listed, 0, len(own))
	for _, v := range own {
		all = append(all, listed{v.CreatedAt, v})
	}
	var silent []string
	var absent []listed
	looking, cancel := context.WithTimeout(r.Context(), directoryTime)
	defer cancel()
	for _, a := range e.Others.Ask(r.Context(), elsewhere.Call{Method: http.MethodGet, Path: "/v2/box", Query: r.URL.RawQuery}) {
		var list []json.RawMessage
		if a.Decode(&list) == nil {
			all = append(all, listedOf(list)...)
			continue
		}
		if silent = append(silent, a.Host); len(absent) < maxAbsent {
			absent = append(absent, e.unreachable(looking, a.Host, filter)...)
		}
	}
	all = append(all, absent[:min(len(absent), maxAbsent)]...)
	elsewhere.NameSilent(w, silent)
	slices.SortStableFunc(all, func(a, b listed) int { return cmp.Compare(a.createdAt, b.createdAt) })
	views := make([]any, 0, len(all))
	for _, b := range all {
		views = append(views, b.view)
	}
	return views
}

// listedOf returns the boxes of a list as another host shows them.
func listedOf(list []json.RawMessage) (out []listed) {
	for _, v := range list {
		var has struct {
			CreatedAt int64 `json:"created_at"`
		}
		_ = json.Unmarshal(v, &has) // 0 then
		out = append(out, listed{has.CreatedAt, v})
	}
	return out
}

// unreachable returns the boxes of a host that did not answer, if the caller sees them.
func (e *Endpoints) unreachable(ctx context.Context, host string, filter api.BoxFilter) (out []listed) {
	if !SeesAll(api.CallerOf(ctx)) || len(filter.Metadata) > 0 {
		return nil
	}
	for _, b := range e.Others.Listed(ctx, host) {
		if filter.Label == "" || slices.Contains(b.Labels, filter.Label) {
			out = append(out, listed{0, unreachableView{b.ID, api.CustomerID, b.Name, orEmpty(b.Labels), api.StatusUnreachable, host}})
		}
	}
	return out
}

// SeesAll reports whether a caller sees the boxes of every creator.
func SeesAll(c api.Caller) bool { return c.Role == api.RoleAdmin || c.Role == api.RoleReader }

// unreachableView is a box of a host that did not answer.
type unreachableView struct {
	ID         policy.BoxID `json:"id"`
	CustomerID string       `json:"customer_id"`
	Name       string       `json:"name,omitempty"`
	Labels     []string     `json:"labels"`
	Status     api.Status   `json:"status"`
	Host       string       `json:"host"`
}

// Times of a deletion of boxes of several hosts.
const (
	findTime   = 10 * time.Second // for the names, which are looked up in the directory
	deleteTime = 10 * time.Minute // for the other hosts
)

// chosen are boxes that a call deletes.
type chosen struct {
	own    []api.Box
	others map[string][]string // IDs or names by host
}

// choose finds the boxes of a call, before the first is deleted.
func (e *Endpoints) choose(r *http.Request, ids []string) (c chosen, err error) {
	c.others = map[string][]string{}
	var unknown []string
	looking, cancel := context.WithTimeout(r.Context(), findTime)
	defer cancel()
	for _, id := range ids {
		box, err := rest.FindBox(r.Context(), e.Boxes, id)
		switch {
		case err == nil:
			c.own = append(c.own, box)
			continue
		case !errors.Is(err, api.ErrNotFound):
			return c, err
		}
		host := ""
		if sought := seekable(api.CallerOf(r.Context()), id); sought != "" && elsewhere.Whole(e.Others, r) {
			if host, err = e.Others.Owner(looking, sought); err != nil {
				return c, err
			}
		}
		if host == "" {
			unknown = append(unknown, id)
		} else {
			c.others[host] = append(c.others[host], id)
		}
	}
	missing, err := e.missing(r.Context(), c.others)
	if unknown = append(unknown, missing...); err == nil && len(unknown) > 0 {
		for i, id := range unknown {
			unknown[i] = strconv.Quote(problem.Clip(id))
		}
		err = api.Errorf(api.ErrNotFound, "nothing was deleted: no box has the ID or name %s", strings.Join(unknown, ", "))
	}
	return c, err
}

// seekable returns the ID or name by which the owner of a box is found; "" if the caller cannot see such a box. For a
// key for one box that is the ID of its box, whatever the name, so that the key learns no names of the fleet.
func seekable(caller api.Caller, idOrName string) string {
	switch {
	case caller.Role != api.RoleBox:
		return idOrName
	case access.LooksLikeID(idOrName) && idOrName != string(caller.Box):
		return ""
	}
	return string(caller.Box)
}

// missing returns the IDs and names that their hosts do not know, or do not show to the caller.
func (e *Endpoints) missing(ctx context.Context, others map[string][]string) (missing []string, err error) {
	if len(others) == 0 {
		return nil, nil
	}
	lists := elsewhere.Call{Method: http.MethodGet, Path: "/v2/box", Bodies: map[string][]byte{}}
	for host := range others {
		lists.Bodies[host] = nil
	}
	for _, a := range e.Others.Ask(ctx, lists) {
		var boxes []struct{ ID, Name string }
		if err := a.Decode(&boxes); err != nil {
			return nil, err
		}
		known := map[string]bool{}
		for _, b := range boxes {
			known[b.ID], known[b.Name] = true, true
		}
		for _, id := range others[a.Host] {
			if !known[id] {
				missing = append(missing, id)
			}
		}
	}
	return missing, nil
}

// deleteElsewhere lets each host delete its boxes, and returns the deleted ones. The error names the boxes of hosts that failed, which may be
// deleted or not, and tells that others are.
func (e *Endpoints) deleteElsewhere(ctx context.Context, others map[string][]string) (deleted []policy.BoxID, err error) {
	if len(others) == 0 {
		return nil, nil
	}
	call := elsewhere.Call{Method: http.MethodDelete, Path: "/v2/box", Bodies: map[string][]byte{}, Time: deleteTime}
	for host, ids := range others {
		if call.Bodies[host], err = json.Marshal(deleteBody{ids}); err != nil {
			return nil, err
		}
	}
	var failed []string
	for _, a := range e.Others.Ask(ctx, call) {
		var did deletedView
		err := a.Decode(&did)
		if err == nil && !mayHaveDeleted(a.Host, did.Deleted, len(others[a.Host])) {
			err = problem.Unreachable(a.Host, "does not answer as this version expects")
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s (%v)", strings.Join(others[a.Host], ", "), err))
			continue
		}
		deleted = append(deleted, did.Deleted...)
	}
	if len(failed) > 0 {
		return deleted, api.Errorf(api.ErrUnavailable, "not all boxes were deleted. Deleted: %d boxes of other hosts. Not deleted: boxes of the host that was asked. Perhaps not deleted: %s", len(deleted), strings.Join(failed, "; "))
	}
	return deleted, nil
}

// mayHaveDeleted reports whether a host that was asked to delete boxes names boxes of its own, and no more. The audit trail takes their IDs.
func mayHaveDeleted(host string, ids []policy.BoxID, asked int) bool {
	return len(ids) <= asked && !slices.ContainsFunc(ids, func(id policy.BoxID) bool {
		return !access.LooksLikeID(string(id)) || !strings.HasPrefix(string(id), host)
	})
}
