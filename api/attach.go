package api

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"

	"boxgate/policy"
)

// attachBody is the JSON of an attach: what to attach, and the fields of a create that do not depend on the launcher.
type attachBody struct {
	NetNS         string          `json:"netns,omitempty" doc:"path of a network namespace, such as /run/netns/NAME"`
	PID           int             `json:"pid,omitempty" doc:"a process in the network namespace"`
	Container     string          `json:"container,omitempty" doc:"ID or name of a Docker container, started with --network none"`
	Stack         string          `json:"stack,omitempty" doc:"whose network stack uses the interface: host (default), the namespace's own; guest, that of a sandbox such as gVisor or a virtual machine, which removes the addresses from the interface"`
	Name          string          `json:"name,omitempty"`
	Labels        []string        `json:"labels,omitempty"`
	AttachHeaders headerRules     `json:"attach_headers,omitempty" doc:"as in a create; values are never read back"`
	NetworkPolicy json.RawMessage `json:"network_policy,omitempty" doc:"as in a create; absent: allow-all"`
}

// The kinds of what is attached.
const (
	AttachNetNS  = "netns"  // the path of a network namespace
	AttachPID    = "pid"    // a process in it
	AttachDocker = "docker" // a container of Docker
)

// Whose network stack uses the interface of an attached box.
const (
	StackHost  = "host"  // the namespace's own
	StackGuest = "guest" // the sandbox's: the gateway sets the interface up once and then leaves it alone
)

// Attached says what was attached and how it was named.
type Attached struct {
	Kind  string `json:"kind"` // one of the constants
	Ref   string `json:"ref"`
	Stack string `json:"stack" doc:"host or guest"` // one of the constants
	PID   int    `json:"-"`                         // Ref as a number, for AttachPID
}

// AttachRequest is a request to attach, validated as a [CreateRequest] is.
type AttachRequest struct {
	Attached
	Name    string // "" for none
	Labels  []string
	Policy  policy.Spec
	Headers []policy.HeaderRule
}

var containerPat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// request validates an attach.
func (b *attachBody) request(hasSecret func(string) bool) (AttachRequest, error) {
	var p problems
	what := b.attached(&p)
	what.Stack = b.stack(&p)
	rest := createBody{Name: b.Name, Labels: b.Labels, AttachHeaders: b.AttachHeaders, NetworkPolicy: b.NetworkPolicy}
	req, err := rest.request(hasSecret)
	if err := p.merge("", err); err != nil {
		return AttachRequest{}, err
	}
	return AttachRequest{Attached: what, Name: req.Name, Labels: req.Labels, Policy: req.Policy, Headers: req.Headers}, p.err()
}

// stack returns whose network stack is meant; the namespace's own if it is not given.
func (b *attachBody) stack(p *problems) string {
	switch b.Stack {
	case "":
		return StackHost
	case StackHost, StackGuest:
	default:
		p.add("/stack", "must be host or guest")
	}
	return b.Stack
}

// attached returns what to attach, of which exactly one must be given.
func (b *attachBody) attached(p *problems) Attached {
	var found []Attached
	if b.NetNS != "" {
		if !filepath.IsAbs(b.NetNS) || filepath.Clean(b.NetNS) != b.NetNS {
			p.add("/netns", "must be an absolute path without . and ..")
		}
		checkText(p, "/netns", b.NetNS, 4096, false)
		found = append(found, Attached{Kind: AttachNetNS, Ref: b.NetNS})
	}
	if b.PID != 0 {
		if b.PID < 1 || b.PID > 1<<22 { // the kernel's own limit, see proc(5)
			p.add("/pid", "is not the ID of a process")
		}
		found = append(found, Attached{Kind: AttachPID, Ref: strconv.Itoa(b.PID), PID: b.PID})
	}
	if b.Container != "" {
		if !containerPat.MatchString(b.Container) {
			p.add("/container", "is not the ID or name of a container")
		}
		found = append(found, Attached{Kind: AttachDocker, Ref: b.Container})
	}
	if len(found) != 1 {
		p.add("", "give one of netns, pid and container")
		return Attached{}
	}
	return found[0]
}

// attachBox is POST /v2/box/attach.
func (a *API) attachBox(w http.ResponseWriter, r *http.Request) (reply, error) {
	var body attachBody
	if err := a.decode(w, r, &body); err != nil {
		return reply{}, err
	}
	req, err := body.request(a.HasSecret)
	if err != nil {
		return reply{}, err
	}
	box, err := a.Host.AttachBox(r.Context(), req)
	if err != nil {
		return reply{}, err
	}
	a.history.log(box.ID, "info", "system", "box attached")
	return reply{status: http.StatusCreated, body: viewBox(box)}, nil
}

// detachBox is POST /v2/box/{id}/detach.
func (a *API) detachBox(_ http.ResponseWriter, r *http.Request) (reply, error) {
	box, err := a.box(r)
	if err != nil {
		return reply{}, err
	}
	if err := a.Host.DetachBox(r.Context(), box.ID); err != nil {
		return reply{}, err
	}
	a.history.forget(box.ID)
	return reply{body: deletedView{Deleted: []policy.BoxID{box.ID}}}, nil
}
