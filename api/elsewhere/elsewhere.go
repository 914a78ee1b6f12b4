// Package elsewhere has the calls to other hosts of a fleet that are part of a client's call, as a list of the boxes of all hosts. Endpoints
// use it for calls that concern several hosts; a call for one box is sent to its owner before it reaches an endpoint.
package elsewhere

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/problem"
)

// Hosts reaches the other hosts of the fleet; implemented by [boxgate/host/peerapi].
type Hosts interface {
	// Owner returns the other host that has a box; "" if it is not known. An ID names its host, and a name is looked up in the directory. The
	// error is [problem.Unreachable] if the host is not a member, and an [api.ErrUnavailable] if the directory does not answer.
	Owner(ctx context.Context, idOrName string) (host string, err error)
	// Ask sends a call to other hosts, with the key of the caller of ctx, and returns their answers, in the order of the IDs of the hosts. The
	// result is empty for callers without a key of the fleet, whom other hosts do not know. The time, the size of the answers and the number of calls are bounded.
	Ask(ctx context.Context, c Call) []Answer
	// Listed returns the boxes of a host in the directory, with IDs, names and labels only; empty if the directory does not answer.
	Listed(ctx context.Context, host string) []api.Box
}

// Call is a call to several hosts.
type Call struct {
	Method, Path, Query string
	// Bodies are the JSON bodies for the hosts that are asked, by ID; nil: no body. A nil map: all other hosts, without a body.
	Bodies map[string][]byte
	Time   time.Duration // for all answers. 0: three seconds
}

// Answer is the answer of a host.
type Answer struct {
	Host   string
	Status int
	Body   []byte
	Err    error // the host did not answer: status and body are not set
}

// Decode decodes a successful answer. The error is for the client: the refusal of the host, or that it does not answer.
func (a Answer) Decode(into any) error {
	if a.Err != nil {
		if _, known := errors.AsType[*problem.Refusal](a.Err); known {
			return a.Err
		}
		return problem.Unreachable(a.Host, "does not answer")
	}
	if a.Status < 200 || a.Status > 299 {
		var refusal problem.Body
		if json.Unmarshal(a.Body, &refusal) != nil || refusal.Error == "" {
			refusal.Error = http.StatusText(a.Status)
		}
		return problem.Refuse(a.Status, "%s", refusal.Error)
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		return problem.Unreachable(a.Host, "does not answer as this version expects")
	}
	return nil
}

// Whole reports whether a request concerns the objects of all hosts: it came from a client with a key of the fleet, not through another host.
func Whole(h Hosts, r *http.Request) bool {
	if h == nil || r.Header[access.PeerHeader] != nil {
		return false
	}
	_, ok := access.ShownKey(r.Context())
	return ok && api.CallerOf(r.Context()).Fleet
}

// SilentHeader is the header of a list with the IDs of the hosts that did not answer.
const SilentHeader = "Boxgate-Unreachable-Hosts"

// NameSilent adds the hosts that did not answer to the header of a list.
func NameSilent(w http.ResponseWriter, hosts []string) {
	if len(hosts) > 0 {
		slices.Sort(hosts)
		w.Header().Set(SilentHeader, strings.Join(hosts, ", "))
	}
}
