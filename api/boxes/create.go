package boxes

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/change"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/internal/lazyregexp"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule"
)

// createBody is the JSON of a create request, in the dialect of the SDK.
type createBody struct {
	Name          string            `json:"name,omitempty"`
	Labels        []string          `json:"labels,omitempty" doc:"at most 5, of at most 20 letters, digits, '.', '_', '-', ':', '='"`
	Metadata      map[string]string `json:"metadata,omitempty" doc:"texts of your programs about the box, shown with it: at most 64, with keys of at most 128 bytes, values of 2,048, and 16 KiB together"`
	Size          string            `json:"size,omitempty" doc:"absent: small" enum:"small medium large"`
	Runtime       string            `json:"runtime,omitempty"`
	KeepAlive     bool              `json:"keep_alive,omitempty"`
	InitCommand   string            `json:"init_command,omitempty" doc:"only with keep_alive"`
	User          string            `json:"user,omitempty" doc:"name of the box's ordinary user, whose ID is 1000; absent: boxuser" example:"user"`
	Home          string            `json:"home,omitempty" doc:"that user's home and working directory, one directory below /home or /workspace; absent: /workspace/home" example:"/home/user"`
	Ephemeral     bool              `json:"ephemeral,omitempty"`
	TTL           *int64            `json:"ttl,omitempty" doc:"seconds; only with ephemeral" min:"1" max:"259200" example:"3600"`
	OnEnd         string            `json:"on_end,omitempty" doc:"what happens at the end of the box; absent: delete. A paused box gets a new end, as far off as the last one, when it is resumed" enum:"delete pause"`
	AutoResume    bool              `json:"auto_resume,omitempty" doc:"with on_end pause: any use of the box resumes it, such as a command or a request to a public URL; absent: only a call of resume does"`
	EnvVars       map[string]string `json:"env_vars,omitempty" doc:"never returned"`
	AttachHeaders spec.Headers      `json:"attach_headers,omitempty" doc:"host pattern to header names to values, or to an entry of the full form; values are never returned"`
	Sources       []string          `json:"source_addresses,omitempty" doc:"host addresses from network.sources that the box's traffic leaves from: one IPv4 address, one IPv6 address, or both; only for admin keys"`
	Limits        spec.Limits       `json:"limits,omitempty" doc:"limits of the box, where they differ from the configuration (docs/limits.md); keys without the role admin may only lower them"`
	NetworkPolicy spec.Policy       `json:"network_policy,omitempty" doc:"a policy of this API, one in the dialect of Vercel Sandbox, E2B or Daytona, or {named} with the name of a named policy; absent: the gateway's policy.default, which is allow-all unless the operator has changed it"`
	Model         string            `json:"model,omitempty" doc:"with a built-in harness: provider/model" example:"anthropic/claude-sonnet-4-5"`
	Agent         string            `json:"agent,omitempty" doc:"harness: claude-code, codex or opencode, which are built in, or custom"`
	AgentAPIKey   string            `json:"agent_api_key,omitempty" doc:"of a built-in harness: becomes a header rule for the host of its model; never returned. Absent, UPSTASH_KEY or STORED_KEY: the header rules of all boxes have it"`
	AgentBaseURL  string            `json:"agent_base_url,omitempty" doc:"server of the model, if it is not the provider's own; absent: the variable ANTHROPIC_BASE_URL (claude-code) or OPENAI_BASE_URL (codex) of env_vars" format:"uri"`
	CustomRunner  *api.CustomRunner `json:"custom_runner,omitempty"`
	GitHubToken   string            `json:"github_token,omitempty" doc:"becomes header rules for github.com and api.github.com, unless attach_headers contains rules for them; never returned"`
	GitUserName   string            `json:"git_user_name,omitempty" doc:"name for commits; absent: Upstash Box"`
	GitUserEmail  string            `json:"git_user_email,omitempty" doc:"address for commits; absent: box@upstash.com"`
	Skills        []string          `json:"skills,omitempty" doc:"installed from GitHub by the box, whose policy must allow github.com"`
	MCPServers    []mcpBody         `json:"mcp_servers,omitempty" doc:"written to the configuration of the harnesses; at most 32"`
	Browser       bool              `json:"browser,omitempty" doc:"true is refused: this gateway has no browser API"`

	meters llm.Meters // of the servers of agents' models
}

// mcpBody is one MCP server of a create request.
type mcpBody struct {
	Name         string            `json:"name"`
	Source       string            `json:"source" enum:"npm url"`
	PackageOrURL string            `json:"package_or_url"`
	Args         []string          `json:"args,omitempty"`
	Headers      map[string]string `json:"headers,omitempty" doc:"become header rules for the host of the URL; values are never returned"`
}

// MaxTTL is the maximum and default lifetime of an ephemeral box.
const MaxTTL = api.MaxTTL

var (
	sizes      = []string{"small", "medium", "large"}
	runtimePat = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$`)
	// reserved are words that the dialect uses instead of an ID in paths.
	reserved = []string{"settings", "attach", "snapshots", "from-snapshot", "agent-credentials", "github"}
)

// request validates the body and converts it into a request to the Host.
func (b *createBody) request(find rule.Finder) (api.CreateRequest, error) {
	var p problem.List
	req := api.CreateRequest{
		Name: b.Name, Labels: b.Labels, Metadata: b.Metadata, Size: b.Size, Runtime: b.Runtime, KeepAlive: b.KeepAlive,
		InitCommand: b.InitCommand, User: b.User, Home: b.Home, Ephemeral: b.Ephemeral, TTL: b.ttl(&p),
		End: api.End{OnEnd: b.OnEnd, AutoResume: b.AutoResume},
	}
	b.checkNames(&p)
	if req.Size == "" {
		req.Size = sizes[0]
	} else if !slices.Contains(sizes, req.Size) {
		p.Add("/size", "must be small, medium or large")
	}
	if b.InitCommand != "" && !b.KeepAlive {
		p.Add("/init_command", "needs keep_alive: true")
	}
	if b.Ephemeral && b.KeepAlive {
		p.Add("/keep_alive", "an ephemeral box cannot be kept alive")
	}
	checkEnd(&p, req.End)
	if req.End.OnEnd == api.EndPause && b.KeepAlive {
		p.Add("/on_end", "a box with keep_alive cannot be paused")
	}
	if b.Browser {
		p.Add("/browser", "this gateway has no browser API; leave it out, start a browser in the box with exec, and reach its port by a public URL")
	}
	var err error
	req.Source, err = spec.Source("/source_addresses", b.Sources)
	if err := p.Merge("", err); err != nil {
		return api.CreateRequest{}, err
	}
	req.Env = spec.Environment(&p, "/env_vars", b.EnvVars)
	req.LimitChange, req.ModelLimit = b.Limits.Change(&p, "/limits"), b.Limits.Model(&p, "/limits")
	req.Hosted, req.HostedSecrets = b.hosted(&p)
	if err := b.network(&req, find, &p); err != nil {
		return api.CreateRequest{}, err
	}
	return req, p.Err()
}

// network parses the policy and the header rules. A policy in the other dialect may contain header rules, too.
func (b *createBody) network(req *api.CreateRequest, find rule.Finder, p *problem.List) error {
	var err error
	var fromPolicy []policy.HeaderRule
	if len(b.NetworkPolicy.RawMessage) > 0 {
		given, err := spec.ParsePolicy(b.NetworkPolicy.RawMessage)
		if err := p.Merge("/network_policy", err); err != nil {
			return err
		}
		req.Policy, req.Named, fromPolicy = given.Spec, given.Named, given.Headers
	}
	if b.AttachHeaders.RawMessage != nil {
		req.Headers, err = policy.ParseHeaderRules(b.AttachHeaders.RawMessage, find)
		if err := p.Merge("/attach_headers", err); err != nil {
			return err
		}
	}
	for _, rule := range fromPolicy {
		if slices.ContainsFunc(req.Headers, rule.SameHosts) {
			p.Add("/network_policy", "%q has headers here and in attach_headers; give them in one place", rule.Pattern)
		}
	}
	req.Headers = append(req.Headers, fromPolicy...)
	req.Headers = append(req.Headers, b.agentKeys(p, req.Hosted).Rules(req.Headers)...)
	req.Headers = spec.WithGitHub(p, "/github_token", b.GitHubToken, req.Headers)
	if n := policy.CountHosts(req.Headers); n > policy.MaxHeaderHosts {
		p.Add("/attach_headers", "with those of network_policy there are %d hosts; the limit is %d", n, policy.MaxHeaderHosts)
	}
	for _, rule := range req.Headers {
		for _, ph := range rule.Placeholders() {
			if _, twice := b.EnvVars[ph.Variable]; twice {
				p.Add("/env_vars/"+problem.EscapeKey(ph.Variable), "a header rule of %q has a placeholder of that name; give it in one place", rule.Pattern)
			}
		}
	}
	return nil
}

func (b *createBody) ttl(p *problem.List) time.Duration {
	switch {
	case b.TTL == nil && b.Ephemeral:
		return MaxTTL
	case b.TTL == nil:
		return 0
	case !b.Ephemeral:
		p.Add("/ttl", "needs ephemeral: true")
	case *b.TTL < 1 || *b.TTL > int64(MaxTTL/time.Second):
		p.Add("/ttl", "must be between 1 and %d seconds", int64(MaxTTL/time.Second))
	}
	return time.Duration(*b.TTL) * time.Second
}

func (b *createBody) checkNames(p *problem.List) {
	if b.Name != "" && !rest.IsBoxName(b.Name) {
		p.Add("/name", "must be 1 to 63 letters, digits, '.', '_' or '-', beginning with a letter or digit")
	}
	if slices.Contains(reserved, b.Name) {
		p.Add("/name", "%q is reserved by the API; choose another name", b.Name)
	}
	if len(b.Labels) > spec.MaxLabels {
		p.Add("/labels", "at most %d labels", spec.MaxLabels)
	}
	for i, l := range b.Labels {
		spec.Label(p, "/labels/"+strconv.Itoa(i), l)
		if slices.Contains(b.Labels[:i], l) {
			p.Add("/labels/"+strconv.Itoa(i), "this label is given twice")
		}
	}
	if b.Runtime != "" && !runtimePat.MatchString(b.Runtime) {
		p.Add("/runtime", "is not the name of a runtime")
	}
	spec.Metadata(p, "/metadata", b.Metadata)
	spec.UserName(p, "/user", b.User)
	spec.Home(p, "/home", b.Home)
	spec.Text(p, "/init_command", b.InitCommand, 64<<10, true)
}

// hosted separates the hosted product's fields into public fields and secrets by pointer.
func (b *createBody) hosted(p *problem.List) (api.Hosted, map[string]name.Secret) {
	secrets := make(map[string]name.Secret)
	keep := func(pointer, value string) {
		if value != "" {
			secrets[pointer] = name.NewSecret(value)
		}
	}
	if b.AgentAPIKey != "" && !agents.IsHostedKey(b.AgentAPIKey) && b.agent() == "" && b.CustomRunner == nil {
		p.Add(agents.KeyPointer, "needs agent, or a model that names its provider: the key becomes a header rule for that agent's server. A snapshot's agent is given again")
	}
	if !agents.IsBuiltIn(b.agent()) {
		keep(agents.KeyPointer, b.AgentAPIKey)
		spec.Text(p, agents.KeyPointer, b.AgentAPIKey, spec.MaxKey, false)
	}
	for pointer, text := range map[string]string{"/model": b.Model, "/agent": b.Agent, "/git_user_name": b.GitUserName, "/git_user_email": b.GitUserEmail} {
		spec.Text(p, pointer, text, 256, false)
	}
	if b.CustomRunner != nil {
		spec.Runner(p, "/custom_runner", b.CustomRunner)
	}
	if len(b.Skills) > spec.MaxSkills {
		p.Add("/skills", "at most %d skills", spec.MaxSkills)
	}
	for i, skill := range b.Skills {
		spec.Skill(p, "/skills/"+strconv.Itoa(i), skill)
		if slices.Contains(b.Skills[:i], skill) {
			p.Add("/skills/"+strconv.Itoa(i), "this skill is given twice")
		}
	}
	base, ofEnv := b.baseURL(p)
	h := api.Hosted{Model: b.Model, Agent: b.agent(), BaseURL: base, BaseURLOfEnv: ofEnv, CustomRunner: b.CustomRunner, Skills: b.Skills, GitUserName: b.GitUserName, GitUserEmail: b.GitUserEmail}
	for _, m := range b.MCPServers {
		server := api.MCPServer{Name: m.Name, Source: m.Source, PackageOrURL: m.PackageOrURL, Args: m.Args}
		server.HeaderNames = slices.Sorted(maps.Keys(m.Headers))
		h.MCPServers = append(h.MCPServers, server)
	}
	agents.CheckServers(p, h.MCPServers)
	return h, secrets
}

// agent returns the harness of the box, which the name of the model may imply.
func (b *createBody) agent() string {
	if b.Agent == "" && b.CustomRunner == nil {
		return agents.HarnessOf(b.Model)
	}
	return b.Agent
}

// baseURL returns the server of the agent's model, if it is given in its field, or in the variable of the harness (ofEnv). With a
// key, it must be one for which there can be a header rule; without, other variables are left to the harness.
func (b *createBody) baseURL(p *problem.List) (base string, ofEnv bool) {
	if b.AgentBaseURL != "" {
		agents.CheckURL(p, "/agent_base_url", b.AgentBaseURL)
		return b.AgentBaseURL, false
	}
	base, variable := agents.BaseURLIn(b.agent(), b.EnvVars)
	if base == "" {
		return "", false
	}
	var wrong problem.List
	if agents.CheckURL(&wrong, "/env_vars/"+variable, base); len(wrong) == 0 {
		return base, true
	}
	if b.AgentAPIKey != "" {
		*p = append(*p, wrong...)
	}
	return "", false
}

// agentKeys returns the keys of the model and of the MCP servers, which become header rules. It leaves out servers beyond the limits, which
// are refused.
func (b *createBody) agentKeys(p *problem.List, h api.Hosted) *agents.Keys {
	keys := agents.NewKeys(p, b.meters)
	if agents.IsBuiltIn(h.Agent) {
		keys.SetModel(agents.KeyPointer, h, b.AgentAPIKey)
	}
	for i, m := range b.MCPServers[:min(len(b.MCPServers), agents.MaxServers)] {
		if len(m.Headers) > agents.MaxFields {
			continue // refused by [agents.CheckServers]
		}
		for name, value := range m.Headers {
			keys.Set("/mcp_servers/"+strconv.Itoa(i)+"/headers/"+problem.EscapeKey(name), agents.HostOf(m.PackageOrURL), name, value)
		}
	}
	return keys
}

// createBox handles POST /v2/box.
func (e *Endpoints) createBox(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var query createQuery
	if err := rest.Query(r, &query); err != nil {
		return rest.Reply{}, err
	}
	if p := query.Placement; p != "" && p != PlacementHere && p != PlacementSpread {
		return rest.Reply{}, problem.Refuse(http.StatusUnprocessableEntity, "query parameter %q must be %s or %s", "placement", PlacementHere, PlacementSpread)
	}
	return e.create(w, r, &createBody{meters: e.Meters})
}

// creation is the body of a call that creates a box.
type creation interface {
	request(find rule.Finder) (api.CreateRequest, error)
}

// create parses the body of a call that creates a box, and creates the box.
func (e *Endpoints) create(w http.ResponseWriter, r *http.Request, body creation) (rest.Reply, error) {
	if err := e.Bodies.Decode(w, r, body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request(e.Secrets.Finder(r.Context()))
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.permit(r.Context(), &req); err != nil {
		return rest.Reply{}, err
	}
	req.Wait = waitOf(r, req.Ephemeral)
	box, err := e.Host.CreateBox(r.Context(), req)
	if err != nil {
		return rest.Reply{}, err
	}
	text := "box created"
	if req.Snapshot != "" {
		text += " from snapshot " + req.Snapshot
	}
	e.History.Log(box.ID, "info", "system", "%s", text)
	return rest.Reply{Status: http.StatusCreated, Body: viewBox(box), Change: describeCreate(box, req)}, nil
}

// fromSnapshotBody is the JSON of a create request with a snapshot.
type fromSnapshotBody struct {
	SnapshotID string `json:"snapshot_id" example:"snap_0123456789abcdef"`
	createBody
}

// request validates the body. Fields that are in the snapshot and not in the request stay empty.
func (b *fromSnapshotBody) request(find rule.Finder) (api.CreateRequest, error) {
	var p problem.List
	if b.SnapshotID == "" || len(b.SnapshotID) > 64 {
		p.Add("/snapshot_id", "must be the ID of a snapshot")
	}
	req, err := b.createBody.request(find)
	if err := p.Merge("", err); err != nil {
		return api.CreateRequest{}, err
	}
	req.Snapshot = b.SnapshotID
	req.Size = b.Size
	return req, p.Err()
}

// createFromSnapshot handles POST /v2/box/from-snapshot.
func (e *Endpoints) createFromSnapshot(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	return e.create(w, r, &fromSnapshotBody{createBody: createBody{meters: e.Meters}})
}

// permit sets the creator of a requested box, and refuses requests beyond the permissions of its key: source addresses, a
// snapshot of a box that the key does not see, and certain header rules.
func (e *Endpoints) permit(ctx context.Context, req *api.CreateRequest) error {
	caller := api.CallerOf(ctx)
	if caller.Key != api.OperatorKey {
		req.CreatedBy = caller.Key
	}
	if caller.Role != api.RoleAdmin && req.Source != (policy.Source{}) {
		return problem.Refuse(http.StatusForbidden, "source_addresses needs an API key with the role %s", api.RoleAdmin)
	}
	var err error
	if req.Limits, err = req.Limits.WithChange(caller, e.Boxes.HostLimits(), req.LimitChange); err != nil {
		return err
	}
	req.Limits = req.Limits.WithModel(caller, req.ModelLimit)
	if err := access.Rules(ctx, req.Headers); err != nil || caller.Role == api.RoleAdmin || req.Snapshot == "" {
		return err
	}
	list, err := e.Snapshots.Snapshots(ctx, "")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(s api.Snapshot) bool { return s.ID == req.Snapshot })
	if i >= 0 && caller.SeesSnapshot(list[i]) {
		return nil
	}
	return api.Errorf(api.ErrNotFound, "this API key sees no snapshot %q", problem.Clip(req.Snapshot))
}

// describeCreate describes a new box for the audit trail: its source, policy and header rules.
func describeCreate(b api.Box, req api.CreateRequest) *rest.Change {
	what := map[string]any{"name": b.Name}
	if req.Snapshot != "" {
		what["snapshot"] = req.Snapshot
	}
	if b.Policy.Named != "" {
		what["named_policy"] = b.Policy.Named
	}
	if b.User != "" || b.Home != "" {
		what["user"], what["home"] = b.UserName(), b.HomeDir()
	}
	if len(b.Metadata) > 0 {
		what["metadata"] = slices.Sorted(maps.Keys(b.Metadata))
	}
	if b.OnEnd != "" {
		what["on_end"], what["auto_resume"] = b.OnEnd, b.AutoResume
	}
	if b.Attached != nil {
		what["attached"] = b.Attached.Kind
	}
	if b.Limits != (api.BoxLimits{}) {
		what["limits"] = b.Limits
	}
	if len(req.Env) > 0 {
		what["environment"] = slices.Sorted(maps.Keys(req.Env))
	}
	all := map[string]any{"box": what, "policy": change.Policy(api.PolicyState{}, b.Policy, change.Whole)}
	if len(req.Headers) > 0 {
		all["headers"] = change.Headers(nil, req.Headers, 1)
	}
	return &rest.Change{Box: b.ID, PolicyVersion: b.Policy.Version, What: all}
}
