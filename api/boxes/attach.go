package boxes

import (
	"net/http"
	"path/filepath"
	"strconv"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/internal/lazyregexp"
	"boxgate/policy"
	"boxgate/rule"
)

// sandboxBody is the JSON of a reattach. If it is empty, the previous sandbox is used.
type sandboxBody struct {
	NetNS     string `json:"netns,omitempty" doc:"path of a network namespace, such as /run/netns/NAME"`
	PID       int    `json:"pid,omitempty" doc:"ID of a process in the network namespace"`
	Container string `json:"container,omitempty" doc:"ID or name of a Docker container, started with --network none"`
}

// tapBody is the JSON of a tap.
type tapBody struct {
	Name       string `json:"name" doc:"name by which the VMM opens it"`
	Owner      int    `json:"owner,omitempty" doc:"ID of the user who may open it (default: 0, root)"`
	MultiQueue bool   `json:"multi_queue,omitempty" doc:"the VMM opens it with several queues"`
	NoDHCP     bool   `json:"no_dhcp,omitempty" doc:"answer no DHCP, DHCPv6 and router solicitations there"`
}

// maxUID is the highest ID of a user.
const maxUID = 1<<31 - 1

// attachBody is the JSON of an attach: the sandbox, and the fields of a create that do not depend on the launcher.
type attachBody struct {
	sandboxBody
	OCI           *ociBody     `json:"oci,omitempty" doc:"with pid: the container of an OCI runtime that the process belongs to"`
	CNI           *cniBody     `json:"cni,omitempty" doc:"with netns: the attachment as the container runtime named it to gateway cni"`
	Remote        bool         `json:"remote,omitempty" doc:"instead of all of these: the sandbox runs elsewhere, and uses the listener remote.listen with a token (createBoxToken)"`
	Tap           *tapBody     `json:"tap,omitempty" doc:"the sandbox is a virtual machine, whose VMM opens this tap: in the namespace netns, or without it in the gateway's"`
	Stack         string       `json:"stack,omitempty" enum:"host guest" doc:"which network stack uses the interface: host (default), that of the namespace; guest, that of a sandbox such as gVisor or a virtual machine, which removes the addresses from the interface"`
	Name          string       `json:"name,omitempty"`
	Labels        []string     `json:"labels,omitempty"`
	AttachHeaders spec.Headers `json:"attach_headers,omitempty" doc:"as in a create request; values are never returned"`
	Sources       []string     `json:"source_addresses,omitempty" doc:"as in a create request"`
	Limits        spec.Limits  `json:"limits,omitempty" doc:"as in a create request"`
	NetworkPolicy spec.Policy  `json:"network_policy,omitempty" doc:"as in a create request"`
}

var containerPat = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// request validates an attach.
func (b *attachBody) request(find rule.Finder) (api.AttachRequest, error) {
	var p problem.List
	what, search := b.sandbox(&p)
	rest := createBody{Name: b.Name, Labels: b.Labels, AttachHeaders: b.AttachHeaders, NetworkPolicy: b.NetworkPolicy, Sources: b.Sources, Limits: b.Limits}
	req, err := rest.request(find)
	if err := p.Merge("", err); err != nil {
		return api.AttachRequest{}, err
	}
	return api.AttachRequest{Attached: what, Search: search, Name: req.Name, Labels: req.Labels, Source: req.Source, Policy: req.Policy, Named: req.Named, Headers: req.Headers, LimitChange: req.LimitChange, ModelLimit: req.ModelLimit}, p.Err()
}

// sandbox returns the sandbox to attach, and the search list of its resolver: nil if it is not known.
func (b *attachBody) sandbox(p *problem.List) (what api.Attached, search []string) {
	if b.Remote {
		if b.sandboxBody != (sandboxBody{}) || b.OCI != nil || b.CNI != nil || b.Tap != nil || b.Stack != "" {
			p.Add("/remote", "goes with no sandbox of this host and no stack")
		}
		return api.Attached{Kind: api.AttachRemote, Stack: api.StackGuest}, nil
	}
	if b.Tap != nil {
		if b.OCI != nil || b.CNI != nil {
			p.Add("/tap", "goes with neither oci nor cni")
		}
		return b.virtualMachine(p), nil
	}
	what = b.attached(p)
	what.Stack = b.stack(p)
	search = b.OCI.apply(&what, p)
	if b.CNI != nil {
		search = b.CNI.apply(&what, p)
		if b.Name != "" {
			p.Add("/name", "is given by the gateway to a CNI attachment")
		}
		b.Name = api.CNIName(what.Ref)
	}
	return what, search
}

// virtualMachine returns the sandbox to attach by a tap.
func (b *attachBody) virtualMachine(p *problem.List) api.Attached {
	what := api.Attached{Kind: api.AttachTap, Ref: b.Tap.Name}
	switch {
	case b.PID != 0 || b.Container != "":
		p.Add("/tap", "goes with netns or alone: its VMM runs in a network namespace")
	case b.NetNS != "":
		what = b.attached(p)
	}
	if what.Stack = api.StackGuest; b.Stack == api.StackHost {
		p.Add("/stack", "of a tap is guest")
	} else if b.Stack != "" {
		b.stack(p)
	}
	spec.Text(p, "/tap/name", b.Tap.Name, 15, false)
	if b.Tap.Owner < 0 || b.Tap.Owner > maxUID {
		p.Add("/tap/owner", "is not the ID of a user")
	}
	what.Tap = &api.Tap{Name: b.Tap.Name, Owner: b.Tap.Owner, MultiQueue: b.Tap.MultiQueue, NoDHCP: b.Tap.NoDHCP}
	return what
}

// stack returns the network stack to use. The default is that of the namespace.
func (b *attachBody) stack(p *problem.List) string {
	switch b.Stack {
	case "":
		return api.StackHost
	case api.StackHost, api.StackGuest:
	default:
		p.Add("/stack", "must be host or guest")
	}
	return b.Stack
}

// attached returns the sandbox to attach. Exactly one field must be set.
func (b *sandboxBody) attached(p *problem.List) api.Attached {
	var found []api.Attached
	if b.NetNS != "" {
		if !filepath.IsAbs(b.NetNS) || filepath.Clean(b.NetNS) != b.NetNS {
			p.Add("/netns", "must be an absolute path without . and ..")
		}
		spec.Text(p, "/netns", b.NetNS, 4096, false)
		found = append(found, api.Attached{Kind: api.AttachNetNS, Ref: b.NetNS})
	}
	if b.PID != 0 {
		if b.PID < 1 || b.PID > 1<<22 { // the kernel's limit, see proc(5)
			p.Add("/pid", "is not the ID of a process")
		}
		found = append(found, api.Attached{Kind: api.AttachPID, Ref: strconv.Itoa(b.PID), PID: b.PID})
	}
	if b.Container != "" {
		if !containerPat.MatchString(b.Container) {
			p.Add("/container", "is not the ID or name of a container")
		}
		found = append(found, api.Attached{Kind: api.AttachDocker, Ref: b.Container})
	}
	if len(found) != 1 {
		p.Add("", "give one of netns, pid and container")
		return api.Attached{}
	}
	return found[0]
}

// attachBox handles POST /v2/box/attach.
func (e *Endpoints) attachBox(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body attachBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request(e.Secrets.Finder(r.Context()))
	if err != nil {
		return rest.Reply{}, err
	}
	if req.Limits, err = (api.BoxLimits{}).WithChange(api.CallerOf(r.Context()), e.Boxes.HostLimits(), req.LimitChange); err != nil {
		return rest.Reply{}, err
	}
	req.Limits = req.Limits.WithModel(api.CallerOf(r.Context()), req.ModelLimit)
	box, err := e.Host.AttachBox(r.Context(), req)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "box attached")
	return rest.Reply{Status: http.StatusCreated, Body: viewBox(box), Change: describeCreate(box, api.CreateRequest{Headers: req.Headers})}, nil
}

// reattachBox handles POST /v2/box/{id}/reattach.
func (e *Endpoints) reattachBox(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body sandboxBody
	if r.ContentLength != 0 {
		if err := e.Bodies.Decode(w, r, &body); err != nil {
			return rest.Reply{}, err
		}
	}
	var to *api.Attached
	if body != (sandboxBody{}) {
		var p problem.List
		what := body.attached(&p)
		if err := p.Err(); err != nil {
			return rest.Reply{}, err
		}
		to = &what
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if box, err = e.Host.ReattachBox(r.Context(), box.ID, to); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "system", "box attached again")
	return rest.Reply{Body: viewBox(box)}, nil
}

// detachBox handles POST /v2/box/{id}/detach.
func (e *Endpoints) detachBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.DetachBox(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: deletedView{Deleted: []policy.BoxID{box.ID}}}, nil
}
