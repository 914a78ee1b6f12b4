package boxes

import (
	"net/netip"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy"
)

// boxView is a box in JSON. Times are Unix seconds; cost figures are 0 because no prices are configured.
type boxView struct {
	ID             policy.BoxID      `json:"id"`
	CustomerID     string            `json:"customer_id"`
	Name           string            `json:"name,omitempty"`
	Labels         []string          `json:"labels"`
	Size           string            `json:"size"`
	Runtime        string            `json:"runtime,omitempty"`
	KeepAlive      bool              `json:"keep_alive"`
	Status         api.Status        `json:"status"`
	Error          string            `json:"error,omitempty"`
	Progress       string            `json:"progress,omitempty" doc:"progress of pulling or building the box's image, while status is creating"`
	Ephemeral      bool              `json:"ephemeral"`
	ExpiresAt      int64             `json:"expires_at,omitempty"`
	IPv4           string            `json:"ipv4,omitempty"`
	IPv6           string            `json:"ipv6,omitempty"`
	Sources        []netip.Addr      `json:"source_addresses,omitempty" doc:"host addresses that the box's traffic leaves from; absent: the host chooses"`
	Limits         map[string]int64  `json:"limits,omitempty" doc:"limits of the box that differ from the configuration; 0: no limit"`
	NetworkPolicy  policy.Spec       `json:"network_policy"`
	PolicyVersion  uint64            `json:"policy_version"`
	NamedPolicy    string            `json:"named_policy,omitempty" doc:"the named policy that the box follows; its content is network_policy"`
	Attached       *api.Attached     `json:"attached,omitempty"`
	Model          string            `json:"model,omitempty"`
	Agent          string            `json:"agent,omitempty"`
	CustomRunner   *api.CustomRunner `json:"custom_runner,omitempty"`
	EnabledSkills  []string          `json:"enabled_skills"`
	MCPServers     []api.MCPServer   `json:"mcp_servers,omitempty"`
	GitUserName    string            `json:"git_user_name,omitempty"`
	GitUserEmail   string            `json:"git_user_email,omitempty"`
	InputTokens    int64             `json:"total_input_tokens"`
	OutputTokens   int64             `json:"total_output_tokens"`
	Prompts        int64             `json:"total_prompts"`
	CPUNs          int64             `json:"total_cpu_ns" doc:"CPU time used by the box; a paused or idle box uses none"`
	Usage          usageView         `json:"usage"`
	ComputeCost    float64           `json:"total_compute_cost_usd"`
	TokenCost      float64           `json:"total_token_cost_usd"`
	LastActivityAt int64             `json:"last_activity_at,omitempty"`
	CreatedBy      string            `json:"created_by,omitempty" doc:"ID of the API key that created the box; absent: the operator's, or the box was attached"`
	CreatedAt      int64             `json:"created_at"`
	UpdatedAt      int64             `json:"updated_at"`
	Warnings       []problem.View    `json:"warnings,omitempty"`
}

func viewBox(b api.Box) boxView {
	v := boxView{
		ID: b.ID, CustomerID: api.CustomerID, Name: b.Name, Labels: orEmpty(b.Labels), Size: b.Size, Runtime: b.Runtime,
		KeepAlive: b.KeepAlive, Status: b.Status, Error: b.Error, Progress: b.Progress, Ephemeral: b.Ephemeral, ExpiresAt: max(b.ExpiresAt.Unix(), 0),
		NetworkPolicy: b.Policy.Spec, PolicyVersion: b.Policy.Version, NamedPolicy: b.Policy.Named,
		Attached: b.Attached, Sources: b.Source.Addrs(), Limits: b.EffectiveLimits.Map(),
		Model: b.Hosted.Model, Agent: b.Hosted.Agent, CustomRunner: b.Hosted.CustomRunner,
		EnabledSkills: orEmpty(b.Hosted.Skills), MCPServers: b.Hosted.MCPServers,
		GitUserName: b.Hosted.GitUserName, GitUserEmail: b.Hosted.GitUserEmail,
		CPUNs: b.Usage.CPU.Nanoseconds(), Usage: viewUsage(b.Usage), LastActivityAt: max(b.LastActivity.Unix(), 0),
		CreatedBy: b.CreatedBy, CreatedAt: max(b.CreatedAt.Unix(), 0), UpdatedAt: max(b.UpdatedAt.Unix(), 0), Warnings: problem.Views(b.Warnings),
	}
	if b.V4.IsValid() {
		v.IPv4 = b.V4.String()
	}
	if b.V6.IsValid() {
		v.IPv6 = b.V6.String()
	}
	return v
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
}

func viewUsage(u api.Usage) usageView {
	return usageView{
		MemoryBytes: u.Memory, PeakMemoryBytes: u.PeakMemory, OOMKills: u.OOMKills, BytesIn: u.BytesIn, BytesOut: u.BytesOut,
		DiskBytes: u.DiskBytes, DiskFiles: u.DiskFiles, DiskPartial: !u.DiskWhole && !u.DiskCountedAt.IsZero(),
		DiskCountedAt: max(u.DiskCountedAt.Unix(), 0),
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
