package e2b

import (
	"encoding/json"
	"net/http"
	"strings"

	"boxgate/api/problem"
	"boxgate/policy"
)

// defaultTimeout is the time to the end of a sandbox without one of its own, in seconds.
const defaultTimeout = 300

// newSandbox is the body of a request for a sandbox. A field that boxgate does not know is refused.
type newSandbox struct {
	TemplateID      string              `json:"templateID"`
	Timeout         *int64              `json:"timeout,omitempty"`
	Metadata        map[string]string   `json:"metadata,omitempty"`
	EnvVars         map[string]string   `json:"envVars,omitempty"`
	Secure          *bool               `json:"secure,omitempty"` // the token is required in any case
	AllowInternet   *bool               `json:"allow_internet_access,omitempty"`
	Network         *network            `json:"network,omitempty"`
	AutoPause       bool                `json:"autoPause,omitempty"`
	AutoPauseMemory *bool               `json:"autoPauseMemory,omitempty"`
	AutoResume      *autoResume         `json:"autoResume,omitempty"`
	IAM             *iam                `json:"iam,omitempty"`
	MCP             map[string]anything `json:"mcp,omitempty"`
	VolumeMounts    []volumeMount       `json:"volumeMounts,omitempty"`
}

// anything is JSON of any form.
type anything struct{ json.RawMessage }

type autoResume struct {
	Enabled bool `json:"enabled"`
}

type iam struct {
	Tokens map[string]iamToken `json:"tokens,omitempty"`
}

type iamToken struct {
	Audience  string `json:"audience"`
	TokenType string `json:"tokenType"`
}

type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// The user of a sandbox, and the home of that user.
const (
	sandboxUser = "user"
	sandboxHome = "/home/user"
)

// newBox is the body of a create request in boxgate's own API.
type newBox struct {
	SnapshotID    string                    `json:"snapshot_id,omitempty"`
	Runtime       string                    `json:"runtime,omitempty"`
	Ephemeral     bool                      `json:"ephemeral"`
	TTL           int64                     `json:"ttl"`
	EnvVars       map[string]string         `json:"env_vars,omitempty"`
	Metadata      map[string]string         `json:"metadata,omitempty"`
	User          string                    `json:"user,omitempty"`
	Home          string                    `json:"home,omitempty"`
	OnEnd         string                    `json:"on_end,omitempty"`
	AutoResume    bool                      `json:"auto_resume,omitempty"`
	NetworkPolicy map[string]any            `json:"network_policy,omitempty"`
	AttachHeaders map[string]map[string]any `json:"attach_headers,omitempty"`
}

// box returns the create request of boxgate's own API for a sandbox, except for the template.
func (s newSandbox) box() (b newBox, err error) {
	var p problem.List
	if len(s.MCP) > 0 {
		p.Add("/mcp", "this gateway starts no MCP servers in a sandbox; start them as commands, and reach their ports")
	}
	if len(s.VolumeMounts) > 0 {
		p.Add("/volumeMounts", "this gateway has no volumes; take a snapshot of a sandbox with the files, and create sandboxes from it")
	}
	if s.IAM != nil && len(s.IAM.Tokens) > 0 {
		p.Add("/iam", "this gateway mints no workload tokens for header values; store a secret with Secret.create, and use Secret.fill with its name")
	}
	if s.AutoPauseMemory != nil && !*s.AutoPauseMemory {
		p.Add("/autoPauseMemory", "a paused sandbox keeps its memory on this gateway; leave keepMemory out")
	}
	b = newBox{Ephemeral: true, TTL: defaultTimeout, EnvVars: s.EnvVars, Metadata: s.Metadata, User: sandboxUser, Home: sandboxHome}
	if s.Timeout != nil {
		b.TTL = ttlOf(*s.Timeout)
	}
	if s.AutoPause {
		b.OnEnd = onTimeoutPause
	}
	if s.AutoResume != nil && s.AutoResume.Enabled {
		if b.AutoResume = true; !s.AutoPause {
			p.Add("/autoResume", "needs autoPause: true")
		}
	}
	n := network{}
	if s.Network != nil {
		n = *s.Network
	}
	b.NetworkPolicy, b.AttachHeaders = n.own(s.AllowInternet, &p)
	return b, p.Err()
}

// ttlOf returns the time to live of a box for a timeout in seconds: a box lives for at least one.
func ttlOf(timeout int64) int64 {
	if timeout == 0 {
		return 1
	}
	return timeout
}

// policyID returns an ID of a box as package policy has it.
func policyID(id string) policy.BoxID { return policy.BoxID(id) }

// create makes a sandbox. The box, its policy and its header rules are one call of boxgate's own API: a refused network leaves no box. Its
// ports are shared after that, and closed until then.
func (e *Endpoints) create(w http.ResponseWriter, r *http.Request) (int, any, error) {
	var body newSandbox
	if err := e.decode(w, r, &body, false); err != nil {
		return 0, nil, err
	}
	in, err := body.box()
	if err != nil {
		return 0, nil, err
	}
	at, err := e.findTemplate(r, body.TemplateID)
	if err != nil {
		return 0, nil, err
	}
	made, err := e.make(r, in, at)
	if err != nil {
		return 0, nil, err
	}
	n := network{}
	if body.Network != nil {
		n = *body.Network
	}
	ports, chosen := n.ports(e.PublicTraffic)
	token, err := e.share(r, made.ID, ports, chosen)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, e.opened(r, made, token), nil
}

// make creates a box from a template.
func (e *Endpoints) make(r *http.Request, in newBox, from template) (made box, err error) {
	path := "/v2/box"
	if in.Runtime = from.image; from.snapshot.ID != "" {
		path, in.SnapshotID = "/v2/box/from-snapshot", from.snapshot.ID
	}
	err = e.own(r, http.MethodPost, path, in, &made)
	return made, inE2B(err)
}

// fields are the names of fields in boxgate's own API with their names in E2B's, for the text of an error.
var fields = strings.NewReplacer(
	"/network_policy", "/network", "/attach_headers", "/network/rules", "/env_vars", "/envVars", "/ttl", "/timeout", "/runtime", "/templateID",
	"/https_ports", "/network/httpsPorts", "/host", "/network/maskRequestHost",
)

// inE2B returns an error of boxgate's own API with the names of E2B's fields.
func inE2B(err error) error {
	if own, ok := err.(*failure); ok { //nolint:errorlint // as [Endpoints.own] returned it
		return &failure{own.status, fields.Replace(own.message), own.retry}
	}
	return err
}
