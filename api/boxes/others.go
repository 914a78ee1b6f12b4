package boxes

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"boxgate/api"
	"boxgate/policy"
)

// Others lists the boxes of the other hosts of the fleet; implemented by [boxgate/host/peerapi].
type Others interface {
	// List asks the other hosts for their boxes, with the key and the query of a request, for a bounded time.
	List(ctx context.Context, query string) Listed
}

// Listed are the boxes of other hosts.
type Listed struct {
	Boxes  []json.RawMessage // as those hosts show them to the caller
	Silent []SilentHost      // hosts that did not answer
}

// SilentHost is a host that did not answer, with its boxes in the directory.
type SilentHost struct {
	ID    string
	Boxes []api.Box // IDs, names and labels only; empty unless the caller is of [SeesAll]
}

// SilentHeader is the header of a list of boxes with the IDs of the hosts that did not answer.
const SilentHeader = "Boxgate-Unreachable-Hosts"

// PlacementSpread is the placement of a new box on the emptier of two hosts of the fleet.
const PlacementSpread = "spread"

// createQuery places a new box.
type createQuery struct {
	Placement string `json:"placement,omitempty" doc:"the host for the box in a fleet: this one, or the emptier of two random ones; absent: here" enum:"here spread" example:"spread"`
}

// withOthers adds the boxes of other hosts to the list, oldest first. If a host did not answer, callers who see every box see
// its entries in the directory, with status unreachable. For others it is not known which of them they see.
func (e *Endpoints) withOthers(w http.ResponseWriter, r *http.Request, own []boxView, filter api.BoxFilter) []any {
	all := make([]any, 0, len(own))
	for _, v := range own {
		all = append(all, v)
	}
	listed, caller := e.Others.List(r.Context(), r.URL.RawQuery), api.CallerOf(r.Context())
	for _, v := range listed.Boxes {
		all = append(all, v)
	}
	var silent []string
	for _, host := range listed.Silent {
		silent = append(silent, host.ID)
		for _, b := range host.Boxes {
			if SeesAll(caller) && len(filter.Metadata) == 0 && (filter.Label == "" || slices.Contains(b.Labels, filter.Label)) {
				all = append(all, unreachableView{b.ID, api.CustomerID, b.Name, orEmpty(b.Labels), api.StatusUnreachable, host.ID})
			}
		}
	}
	if len(silent) > 0 {
		w.Header().Set(SilentHeader, strings.Join(silent, ", "))
	}
	slices.SortStableFunc(all, func(a, b any) int { return cmp.Compare(createdAt(a), createdAt(b)) })
	return all
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

// createdAt returns when a listed box was created, in Unix seconds; 0: that is not known.
func createdAt(v any) int64 {
	switch v := v.(type) {
	case boxView:
		return v.CreatedAt
	case json.RawMessage:
		var has struct {
			CreatedAt int64 `json:"created_at"`
		}
		_ = json.Unmarshal(v, &has) // 0 then
		return has.CreatedAt
	}
	return 0
}
