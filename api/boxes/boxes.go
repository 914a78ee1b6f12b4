// Package boxes serves the boxes: create, attach, list, show, test and delete.
package boxes

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/elsewhere"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/llm"
	"boxgate/policy"
)

// Host creates, attaches and deletes boxes. Errors are as in package api.
type Host interface {
	// CreateBox returns once the box can run commands, or earlier with StatusCreating; clients poll then. A name already
	// in use is an ErrConflict; an unsupported runtime or field is a *document.InvalidError.
	CreateBox(ctx context.Context, req api.CreateRequest) (api.Box, error)
	// AttachBox attaches an existing network namespace to the gateway and returns once its policy is active. A namespace
	// that cannot be found or used is a *document.InvalidError.
	AttachBox(ctx context.Context, req api.AttachRequest) (api.Box, error)
	// ReattachBox attaches a box to its sandbox again, or to the sandbox to if it is not nil, and returns once its policy
	// is active there. A sandbox that cannot be found or used is a *document.InvalidError; a launched box is an
	// ErrConflict.
	ReattachBox(ctx context.Context, id policy.BoxID, to *api.Attached) (api.Box, error)
	// DetachBox disconnects an attached box and deletes its state. A launched box is an ErrConflict.
	DetachBox(ctx context.Context, id policy.BoxID) error
	// RotateToken gives a remote box a new token for a time, in place of the previous one, whose connections it cuts. Another
	// box is an ErrConflict.
	RotateToken(ctx context.Context, id policy.BoxID, lifetime time.Duration) (api.RemoteToken, error)
	// RevokeToken takes the token of a remote box, and cuts its connections. Another box is an ErrConflict.
	RevokeToken(ctx context.Context, id policy.BoxID) error
	// SetLifetime moves the end of a box, and returns the box with its end before. A box that is being deleted is an ErrNotFound, an
	// attached box an ErrConflict, a later end by a key for one box an ErrForbidden, and an end that is too far a
	// *document.InvalidError.
	SetLifetime(ctx context.Context, id policy.BoxID, set api.Lifetime) (is api.Box, was time.Time, err error)
	// SetEnd sets what happens at the end of a box, and returns the box after and before. A box that is being deleted is an ErrNotFound; an
	// attached box, and a pause of one with keep_alive, an ErrConflict; a key for one box that would keep it longer, an ErrForbidden.
	SetEnd(ctx context.Context, id policy.BoxID, end api.End) (is, was api.Box, err error)
	// SuspendBox pauses a box as at its end. A box without an end, or that cannot be paused, is an ErrConflict, and a key for one box an
	// ErrForbidden.
	SuspendBox(ctx context.Context, id policy.BoxID) (api.Box, error)
	// DeleteBox stops the box, cuts its connections and deletes its state.
	DeleteBox(ctx context.Context, id policy.BoxID) error
}

// Table finds and lists the boxes.
type Table interface {
	rest.Finder
	// FreshBox is Box with usage that was read from the kernel within a second. Box has that of the last regular reading.
	FreshBox(ctx context.Context, idOrName string) (api.Box, error)
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f api.BoxFilter) ([]api.Box, error)
	// HostLimits returns the configured limits of every box.
	HostLimits() policy.Limits
	// HostModelLimit returns the configured limit of models of every box.
	HostModelLimit() llm.Limit
}

// Snapshots gives access to the snapshots of boxes.
type Snapshots interface {
	// Snapshots lists the snapshots of a box, or of all boxes for "".
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
}

// SelfTests runs self-tests of boxes.
type SelfTests interface {
	// SelfTest runs attacks of a hostile program inside the box. A hole is reported, but is not an error. If
	// another self-test is already running, the error is an ErrConflict.
	SelfTest(ctx context.Context, id policy.BoxID) (api.SelfTestReport, error)
}

// Endpoints serves the boxes.
type Endpoints struct {
	Boxes     Table
	Host      Host
	Snapshots Snapshots
	SelfTests SelfTests
	Samples   Samples
	History   *history.History
	Bodies    strict.Bodies
	Secrets   access.Secrets  // that header rules may refer to
	Meters    llm.Meters      // of the servers of agents' models
	Others    elsewhere.Hosts // nil: there is no fleet
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return append(append(e.lifetimeRoutes(), e.samplesRoutes()...), []rest.Route{
		{Method: "POST", Path: "/v2/box", ID: "createBox", Summary: "Create a box", Status: 201, Query: reflect.TypeFor[createQuery](), Request: reflect.TypeFor[createBody](),
			Example:  `{"name":"web-1","size":"small","labels":["beta"],"env_vars":{"STAGE":"test"},"network_policy":{"mode":"custom","allowed_domains":["api.example.com"]},"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`,
			Response: reflect.TypeFor[boxView](), Handle: e.createBox},
		{Method: "POST", Path: "/v2/box/from-snapshot", ID: "createBoxFromSnapshot", Summary: "Create a box with the files of a snapshot; missing fields are taken from the snapshot", Status: 201,
			Request: reflect.TypeFor[fromSnapshotBody](), Example: `{"snapshot_id":"snap_0123456789abcdef","name":"second","env_vars":{"LOG_LEVEL":"debug"}}`,
			Response: reflect.TypeFor[boxView](), Handle: e.createFromSnapshot},
		{Method: "POST", Path: "/v2/box/attach", ID: "attachBox", Summary: "Attach an existing network namespace, process or container", Status: 201, Request: reflect.TypeFor[attachBody](), Example: `{"netns":"/run/netns/agent-1","network_policy":{"mode":"deny-all"}}`, Response: reflect.TypeFor[boxView](), Handle: e.attachBox},
		{Method: "POST", Path: "/v2/box/{id}/reattach", ID: "reattachBox", Summary: "Attach a box to its sandbox again, or to another one; its policy, rules, URLs and CA stay", Request: reflect.TypeFor[sandboxBody](), Example: `{"container":"agent-1"}`, Response: reflect.TypeFor[boxView](), Handle: e.reattachBox},
		{Method: "POST", Path: "/v2/box/{id}/detach", ID: "detachBox", Summary: "Disconnect an attached box and delete it", Response: reflect.TypeFor[deletedView](), Handle: e.detachBox},
		{Method: "POST", Path: "/v2/box/{id}/token", ID: "createBoxToken", Summary: "Give a box that runs elsewhere a new token, which is shown only once; the previous one is revoked and its connections are cut", Status: 201, Request: reflect.TypeFor[tokenBody](), Example: `{"expires_in":86400}`, Response: reflect.TypeFor[tokenView](), Handle: e.createToken},
		{Method: "DELETE", Path: "/v2/box/{id}/token", ID: "deleteBoxToken", Summary: "Revoke the token of a box that runs elsewhere, and cut its connections", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteToken},
		{Method: "GET", Path: "/v2/box", ID: "listBoxes", Summary: "List the boxes", Query: reflect.TypeFor[listQuery](), Response: reflect.TypeFor[[]boxView](), Handle: e.listBoxes},
		{Method: "DELETE", Path: "/v2/box", ID: "deleteBoxes", Summary: "Delete several boxes; with an unknown one, no box is deleted", Request: reflect.TypeFor[deleteBody](), Example: `{"ids":["web-1","web-2"]}`, Response: reflect.TypeFor[deletedView](), Handle: e.deleteBoxes},
		{Method: "GET", Path: "/v2/box/{id}", ID: "getBox", Summary: "One box, by ID or name", Response: reflect.TypeFor[boxView](), Handle: e.getBox},
		{Method: "DELETE", Path: "/v2/box/{id}", ID: "deleteBox", Summary: "Delete a box", Response: reflect.TypeFor[deletedView](), Handle: e.deleteBox},
		{Method: "GET", Path: "/v2/box/{id}/status", ID: "getBoxStatus", Summary: "The state of a box", Response: reflect.TypeFor[statusView](), Handle: e.getStatus},
		{Method: "POST", Path: "/v2/box/{id}/selftest", ID: "testBox", Summary: "Attack the gateway from inside the box; returns a scorecard after a few seconds", Response: reflect.TypeFor[selfTestView](), Handle: e.selfTest},
	}...)
}

// listQuery selects boxes.
type listQuery struct {
	Label    string `json:"label,omitempty" doc:"only boxes with this label" example:"beta"`
	Metadata string `json:"metadata,omitempty" doc:"only boxes with all these entries: pairs as in a query, encoded once more as the value of this parameter" example:"user=42&stage=test"`
}

func (e *Endpoints) listBoxes(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var query listQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	filter := api.BoxFilter{Label: query.Label}
	var err error
	if filter.Metadata, err = metadataOf(query.Metadata); err != nil {
		return rest.Reply{}, err
	}
	boxes, err := e.Boxes.Boxes(r.Context(), filter)
	if err != nil {
		return rest.Reply{}, err
	}
	views, caller := make([]boxView, 0, len(boxes)), api.CallerOf(r.Context())
	for _, b := range boxes {
		if caller.Sees(b) {
			views = append(views, viewFor(caller, b))
		}
	}
	if elsewhere.Whole(e.Others, r) {
		return rest.Reply{Body: e.withOthers(w, r, views, filter)}, nil
	}
	return rest.Reply{Body: views}, nil
}

// metadataOf reads entries of metadata from a query parameter.
func metadataOf(text string) (map[string]string, error) {
	pairs, err := url.ParseQuery(text)
	if err != nil || len(pairs) > spec.MaxMetadata {
		return nil, problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q must be at most %d pairs as in a query, such as user=42&stage=test, encoded", "metadata", spec.MaxMetadata)
	}
	entries := make(map[string]string, len(pairs))
	for key, values := range pairs {
		if len(values) > 1 {
			return nil, problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q has the key %q twice", "metadata", problem.Clip(key))
		}
		entries[key] = values[0]
	}
	return entries, nil
}

// fresh finds boxes with fresh usage.
type fresh struct{ Table }

// Box implements [rest.Finder].
func (f fresh) Box(ctx context.Context, idOrName string) (api.Box, error) {
	return f.FreshBox(ctx, idOrName)
}

func (e *Endpoints) getBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, fresh{e.Boxes})
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewFor(api.CallerOf(r.Context()), box)}, nil
}

func (e *Endpoints) getStatus(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: statusView{box.Status, box.Error}}, nil
}

func (e *Endpoints) deleteBox(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	return e.deleteAll(r, []api.Box{box})
}

// deleteBoxes finds all boxes before it deletes the first, so that a mistyped ID does not cause a partial deletion.
func (e *Endpoints) deleteBoxes(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body deleteBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if len(body.IDs) == 0 || len(body.IDs) > 1000 {
		return rest.Reply{}, problem.Invalid("/ids", "must name 1 to 1000 boxes")
	}
	found, err := e.choose(r, body.IDs)
	if err != nil {
		return rest.Reply{}, err
	}
	gone, err := e.deleteElsewhere(r.Context(), found.others)
	if err != nil {
		return rest.Reply{}, err
	}
	reply, err := e.deleteAll(r, found.own, gone...)
	if err != nil && len(gone) > 0 {
		err = api.Errorf(api.ErrUnavailable, "not all boxes were deleted. Deleted: %d boxes of other hosts. Perhaps not deleted: boxes of the host that was asked: %v", len(gone), err)
	}
	return reply, err
}

// deleteAll deletes boxes of this host. elsewhere are boxes that other hosts have deleted for the same call.
func (e *Endpoints) deleteAll(r *http.Request, boxes []api.Box, elsewhere ...policy.BoxID) (rest.Reply, error) {
	deleted := deletedView{Deleted: []policy.BoxID{}}
	for _, box := range boxes {
		// A box that no longer exists, or was listed twice, counts as deleted.
		if err := e.Host.DeleteBox(r.Context(), box.ID); err != nil && !errors.Is(err, api.ErrNotFound) {
			return rest.Reply{}, err
		}
		deleted.Deleted = append(deleted.Deleted, box.ID)
	}
	deleted.Deleted = append(deleted.Deleted, elsewhere...)
	what := map[string]any{"deleted": deleted.Deleted}
	if names := namesOf(boxes); len(names) > 0 {
		what["names"] = names
	}
	return rest.Reply{Body: deleted, Change: &rest.Change{What: what}}, nil
}

// namesOf returns the names of boxes, leaving out boxes without a name.
func namesOf(boxes []api.Box) map[policy.BoxID]string {
	names := map[policy.BoxID]string{}
	for _, b := range boxes {
		if b.Name != "" {
			names[b.ID] = b.Name
		}
	}
	return names
}

// boxView is a box in JSON. Times are Unix seconds; the costs of tokens are 0 without prices in the configuration, and that of computing always.
type boxView struct {
	ID             policy.BoxID      `json:"id"`
	CustomerID     string            `json:"customer_id"`
	Name           string            `json:"name,omitempty"`
	Labels         []string          `json:"labels"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Size           string            `json:"size"`
	Runtime        string            `json:"runtime,omitempty"`
	KeepAlive      bool              `json:"keep_alive"`
	User           string            `json:"user,omitempty" doc:"name of the box's ordinary user; absent: an attached box"`
	Home           string            `json:"home,omitempty" doc:"home and working directory of that user" example:"/workspace/home"`
	Status         api.Status        `json:"status"`
	Error          string            `json:"error,omitempty"`
	Progress       string            `json:"progress,omitempty" doc:"progress of pulling or building the box's image, while status is creating"`
	Ephemeral      bool              `json:"ephemeral"`
	ExpiresAt      int64             `json:"expires_at,omitempty" doc:"when the box is deleted, or paused as on_end has it; absent: never"`
	OnEnd          string            `json:"on_end,omitempty" doc:"what happens at the end of the box; absent: an attached box" enum:"delete pause"`
	AutoResume     bool              `json:"auto_resume,omitempty" doc:"any use resumes the box after it was paused at its end"`
	PausedAtEnd    bool              `json:"paused_at_end,omitempty" doc:"the box was paused at its end; expires_at is when it is deleted"`
	Root           bool              `json:"root,omitempty" doc:"code in the box may become the box's root: it was started with launcher.root"`
	IPv4           string            `json:"ipv4,omitempty"`
	IPv6           string            `json:"ipv6,omitempty"`
	Sources        []netip.Addr      `json:"source_addresses,omitempty" doc:"host addresses that the box's traffic leaves from; absent: the host chooses"`
	Limits         map[string]int64  `json:"limits,omitempty" doc:"limits of the box that differ from the configuration; 0: no limit"`
	NetworkPolicy  policy.Spec       `json:"network_policy"`
	PolicyVersion  uint64            `json:"policy_version"`
	NamedPolicy    string            `json:"named_policy,omitempty" doc:"the named policy that the box follows; its content is network_policy"`
	AuditedUntil   int64             `json:"policy_audited_until,omitempty" doc:"until then the policy is audited instead of enforced"`
	Attached       *api.Attached     `json:"attached,omitempty"`
	Model          string            `json:"model,omitempty"`
	Agent          string            `json:"agent,omitempty"`
	AgentBaseURL   string            `json:"agent_base_url,omitempty"`
	CustomRunner   *api.CustomRunner `json:"custom_runner,omitempty"`
	EnabledSkills  []string          `json:"enabled_skills"`
	MCPServers     []api.MCPServer   `json:"mcp_servers,omitempty"`
	GitUserName    string            `json:"git_user_name,omitempty"`
	GitUserEmail   string            `json:"git_user_email,omitempty"`
	InputTokens    int64             `json:"total_input_tokens" doc:"of metered requests to models, cached tokens included; without any, as the harness reported them"`
	OutputTokens   int64             `json:"total_output_tokens"`
	Prompts        int64             `json:"total_prompts" doc:"runs of the agent"`
	SessionID      history.Text      `json:"session_id,omitempty" doc:"the agent's last conversation"`
	CPUNs          int64             `json:"total_cpu_ns" doc:"CPU time used by the box; a paused or idle box uses none"`
	Usage          usageView         `json:"usage"`
	ComputeCost    float64           `json:"total_compute_cost_usd"`
	TokenCost      float64           `json:"total_token_cost_usd" doc:"by the prices of the configuration"`
	LastActivityAt int64             `json:"last_activity_at,omitempty"`
	CreatedBy      string            `json:"created_by,omitempty" doc:"ID of the API key that created the box; absent: the operator's, or the box was attached"`
	CreatedAt      int64             `json:"created_at"`
	UpdatedAt      int64             `json:"updated_at"`
	Warnings       []problem.View    `json:"warnings,omitempty"`
}

func viewBox(b api.Box) boxView {
	v := boxView{
		ID: b.ID, CustomerID: api.CustomerID, Name: b.Name, Labels: orEmpty(b.Labels), Metadata: b.Metadata, Size: b.Size, Runtime: b.Runtime,
		KeepAlive: b.KeepAlive, Status: b.Status, Error: b.Error, Progress: b.Progress, Ephemeral: b.Ephemeral, Root: b.Root, ExpiresAt: max(b.ExpiresAt.Unix(), 0),
		NetworkPolicy: b.Policy.Spec, PolicyVersion: b.Policy.Version, NamedPolicy: b.Policy.Named,
		Attached: b.Attached, Sources: b.Source.Addrs(), Limits: b.EffectiveLimits.Map(),
		Model: b.Hosted.Model, Agent: b.Hosted.Agent, AgentBaseURL: shownURL(b.Hosted), CustomRunner: b.Hosted.CustomRunner,
		EnabledSkills: orEmpty(b.Hosted.Skills), MCPServers: b.Hosted.MCPServers,
		GitUserName: b.Hosted.GitUserName, GitUserEmail: b.Hosted.GitUserEmail,
		Prompts: b.Hosted.Totals.Prompts, SessionID: history.Text(b.Hosted.Session), TokenCost: b.Usage.Models.USD.Float(),
		CPUNs: b.Usage.CPU.Nanoseconds(), Usage: viewUsage(b.Usage), LastActivityAt: max(b.LastActivity.Unix(), 0),
		CreatedBy: b.CreatedBy, CreatedAt: max(b.CreatedAt.Unix(), 0), UpdatedAt: max(b.UpdatedAt.Unix(), 0), Warnings: problem.Views(b.Warnings),
	}
	v.InputTokens, v.OutputTokens = b.Hosted.Totals.InputTokens, b.Hosted.Totals.OutputTokens
	if m := b.Usage.Models; m.Requests > 0 {
		v.InputTokens, v.OutputTokens = rest.Tokens(llm.Add(m.Input, llm.Add(m.CacheRead, m.CacheWrite))), rest.Tokens(m.Output)
	}
	if b.Attached == nil {
		v.User, v.Home = b.UserName(), b.HomeDir()
		v.OnEnd, v.AutoResume, v.PausedAtEnd = cmp.Or(b.OnEnd, api.EndDelete), b.AutoResume, b.PausedAtEnd
	}
	if l, audited := b.Policy.Audit(); audited {
		v.AuditedUntil = l.ExpiresAt.Unix()
	}
	if b.V4.IsValid() {
		v.IPv4 = b.V4.String()
	}
	if b.V6.IsValid() {
		v.IPv6 = b.V6.String()
	}
	return v
}

// shownURL returns the server of the agent's model, unless it is the value of a variable.
func shownURL(h api.Hosted) string {
	if h.BaseURLOfEnv {
		return ""
	}
	return h.BaseURL
}

// viewFor returns a box as a key may see it. Read-only keys do not see commands, which may contain secrets.
func viewFor(caller api.Caller, b api.Box) boxView {
	v := viewBox(b)
	if caller.Role == api.RoleReader {
		v.CustomRunner, v.MCPServers = nil, nil
	}
	return v
}

// usageView is the usage of a box since it was created.
type usageView struct {
	MemoryBytes     int64  `json:"memory_bytes" doc:"current usage"`
	PeakMemoryBytes int64  `json:"memory_peak_bytes"`
	OOMKills        uint64 `json:"oom_kills" doc:"processes that the kernel killed because the box's memory ran out"`
	BytesIn         uint64 `json:"bytes_in" doc:"at the box's interface, towards the box"`
	BytesOut        uint64 `json:"bytes_out" doc:"at the box's interface, from the box, including refused traffic"`
	DiskBytes       int64  `json:"disk_bytes" doc:"bytes that the box has written to its root, as last counted"`
	DiskFiles       int64  `json:"disk_files"`
	DiskPartial     bool   `json:"disk_partial,omitempty" doc:"the count stopped early; there are more files"`
	DiskCountedAt   int64  `json:"disk_counted_at,omitempty" doc:"absent: not yet"`

	Models *rest.ModelView `json:"models,omitempty" doc:"use of models by metered requests (docs/budgets.md); absent: none"`
}

func viewUsage(u api.Usage) usageView {
	return usageView{
		MemoryBytes: u.Memory, PeakMemoryBytes: u.PeakMemory, OOMKills: u.OOMKills, BytesIn: u.BytesIn, BytesOut: u.BytesOut,
		DiskBytes: u.DiskBytes, DiskFiles: u.DiskFiles, DiskPartial: !u.DiskWhole && !u.DiskCountedAt.IsZero(),
		DiskCountedAt: max(u.DiskCountedAt.Unix(), 0), Models: rest.ViewModels(u.Models),
	}
}

// orEmpty replaces a nil slice, so that it is encoded as an empty JSON array, as the SDK's types require.
func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// statusView is the response of getStatus.
type statusView struct {
	Status api.Status `json:"status"`
	Error  string     `json:"error,omitempty"`
}

// deleteBody lists the boxes to delete.
type deleteBody struct {
	IDs []string `json:"ids" doc:"IDs or names, at most 1000"`
}

// deletedView lists the deleted boxes.
type deletedView struct {
	Deleted []policy.BoxID `json:"deleted"`
}

const (
	// defaultWait is how long a create waits for the box. Most boxes take some tenths of a second. For slower ones, for
	// example if an image is pulled, the response is a box in state creating, which clients poll.
	defaultWait = 10 * time.Second
	// maxWait is for clients that ask to wait, and for clients of ephemeral boxes, which do not poll.
	maxWait = 10 * time.Minute
)

// waitOf returns how long the client of a create waits, according to its Prefer header (RFC 7240).
func waitOf(r *http.Request, ephemeral bool) time.Duration {
	wait := defaultWait
	if ephemeral {
		wait = maxWait
	}
	for _, field := range r.Header.Values("Prefer") {
		for preference := range strings.SplitSeq(field, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(preference), "=")
			seconds, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 16)
			switch {
			case strings.EqualFold(name, "respond-async"):
				return 0
			case strings.EqualFold(name, "wait") && err == nil:
				wait = min(time.Duration(seconds)*time.Second, maxWait)
			}
		}
	}
	return wait
}

// selfTestView is a self-test report in JSON.
type selfTestView struct {
	Box           string              `json:"box"`
	Tight         bool                `json:"tight" doc:"no hole was found, and every probe that could have found one was run"`
	Status        string              `json:"status" enum:"tight not_tight untestable" doc:"tight; not_tight; or untestable, if the box has its own network stack: no probe was run, and reason explains why"`
	Reason        string              `json:"reason,omitempty" doc:"why the box is untestable"`
	Mode          string              `json:"mode" doc:"mode of the active policy"`
	PolicyVersion uint64              `json:"policy_version"`
	StartedAt     time.Time           `json:"started_at"`
	DurationMS    int64               `json:"duration_ms"`
	Summary       selfTestSummaryView `json:"summary"`
	Probes        []selfTestProbeView `json:"probes"`
}

// selfTestSummaryView counts the probes by verdict.
type selfTestSummaryView struct {
	Tight   int `json:"tight"`
	Holes   int `json:"holes"`
	NotRun  int `json:"not_run"`
	Skipped int `json:"skipped" doc:"allowed by the policy, or not applicable to it"`
}

// selfTestProbeView is one probe of a self-test report.
type selfTestProbeView struct {
	Group    string `json:"group"`
	Attack   string `json:"attack"`
	Family   string `json:"family" enum:"ipv4 ipv6"`
	Target   string `json:"target"`
	Expected string `json:"expected"`
	Seen     string `json:"seen,omitempty"`
	Verdict  string `json:"verdict" enum:"tight hole not_run skipped"`
	Why      string `json:"why,omitempty"`
}

func selfTestViewOf(r api.SelfTestReport) selfTestView {
	v := selfTestView{
		Box: string(r.Box), Tight: r.Tight(), Status: string(r.Status()), Reason: r.Untestable, Mode: string(r.Mode), PolicyVersion: r.Version, StartedAt: r.Started,
		DurationMS: r.Duration.Milliseconds(), Probes: []selfTestProbeView{},
		Summary: selfTestSummaryView{r.Count(api.ProbeTight), r.Count(api.ProbeHole), r.Count(api.ProbeNotRun), r.Count(api.ProbeSkipped)},
	}
	for _, p := range r.Probes {
		v.Probes = append(v.Probes, selfTestProbeView{
			p.Group, p.Attack, p.Family, p.Target, p.Expected, p.Seen, string(p.Verdict), p.Why,
		})
	}
	return v
}

// selfTest runs the attacks inside the box. A hole is part of the report and does not fail the call.
func (e *Endpoints) selfTest(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	report, err := e.SelfTests.SelfTest(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: selfTestViewOf(report)}, nil
}
