package boxes

import (
	"regexp"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/spec"
)

// cniBody is the JSON of a CNI attachment, which its network, container ID and interface identify.
type cniBody struct {
	Network   string   `json:"network" doc:"name of the CNI network"`
	Container string   `json:"container_id" doc:"the runtime's ID of the pod's sandbox"`
	Interface string   `json:"interface" doc:"the interface in the pod"`
	Pod       string   `json:"pod,omitempty" doc:"the Kubernetes pod, as namespace/name; policies of resources are for pods of their namespace"`
	Search    []string `json:"search,omitempty" doc:"search list of the pod's resolver"`
}

// The bounds of a CNI attachment. An interface name is at most 15 bytes long in the kernel; for the others the CNI specification has
// no bound.
const (
	maxCNIName   = 256
	maxInterface = 15
	maxPod       = 63 + len("/") + 253 // of Kubernetes
)

var (
	cniPat       = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`) // of the CNI specification
	interfacePat = regexp.MustCompile(`^[^/:\s\x00-\x20\x7f]+$`)
)

// apply makes what a CNI attachment, and returns the search list of its resolver: nil if the runtime has passed none. It has no effect
// on a nil body.
func (b *cniBody) apply(what *api.Attached, p *problem.List) (search []string) {
	if b == nil {
		return nil
	}
	if what.Kind != api.AttachNetNS {
		p.Add("/cni", "needs netns, the path that the runtime gave the plugin")
	}
	for at, text := range map[string]string{"network": b.Network, "container_id": b.Container} {
		if len(text) > maxCNIName || !cniPat.MatchString(text) {
			p.Add("/cni/"+at, "must be 1 to %d letters, digits, '.', '_' or '-', beginning with a letter or digit", maxCNIName)
		}
	}
	if len(b.Interface) > maxInterface || !interfacePat.MatchString(b.Interface) {
		p.Add("/cni/interface", "is not the name of an interface")
	}
	spec.Text(p, "/cni/pod", b.Pod, maxPod, false)
	if len(b.Search) > maxSearch {
		p.Add("/cni/search", "at most %d domains", maxSearch)
	}
	for i, domain := range b.Search {
		if len(domain) > maxDomain || strings.ContainsFunc(domain, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			p.Add("/cni/search/"+strconv.Itoa(i), "is not a domain")
		}
	}
	*what = api.Attached{Kind: api.AttachCNI, Ref: api.CNIRef(b.Network, b.Container, b.Interface), NetNS: what.Ref, Pod: b.Pod, Stack: what.Stack}
	return b.Search
}
