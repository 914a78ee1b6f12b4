package boxes

import (
	"regexp"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
)

// ociBody is the JSON about a container that `gateway oci` attaches.
type ociBody struct {
	ID      string   `json:"id" doc:"the container's ID"`
	Runtime string   `json:"runtime" doc:"name of the program that runs it, such as runc"`
	Search  []string `json:"search,omitempty" doc:"search list of the container's resolver"`
}

// The bounds of the texts about a container: container engines use IDs of up to 76 bytes, and resolvers 32 domains.
const (
	maxContainerID = 256
	maxSearch      = 32
	maxDomain      = 253
)

// ociPat matches the IDs that OCI runtimes accept, and the names of their programs.
var ociPat = regexp.MustCompile(`^[A-Za-z0-9_+.-]+$`)

// apply makes what a container of `gateway oci` and returns the search list of its resolver, which is not nil. It has no effect on a
// nil body.
func (b *ociBody) apply(what *api.Attached, p *problem.List) (search []string) {
	if b == nil {
		return nil
	}
	if what.Kind != api.AttachPID {
		p.Add("/oci", "needs pid, a process of the container")
	}
	for at, text := range map[string]string{"id": b.ID, "runtime": b.Runtime} {
		if len(text) > maxContainerID || !ociPat.MatchString(text) {
			p.Add("/oci/"+at, "must be 1 to %d letters, digits, '_', '+', '.' or '-'", maxContainerID)
		}
	}
	if len(b.Search) > maxSearch {
		p.Add("/oci/search", "has more than %d domains", maxSearch)
	}
	for i, domain := range b.Search {
		if len(domain) > maxDomain || strings.ContainsFunc(domain, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			p.Add("/oci/search/"+strconv.Itoa(i), "is not a domain")
		}
	}
	*what = api.Attached{Kind: api.AttachOCI, Ref: b.ID, PID: what.PID, Stack: what.Stack, Runtime: b.Runtime}
	return append([]string{}, b.Search...)
}
