package api

import (
	"cmp"
	"io"
	"net/netip"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// StoreReport is the result of reading every document of the store.
type StoreReport struct {
	Documents int      `json:"documents" doc:"number of documents"`
	Problems  []string `json:"problems" doc:"documents that cannot be read or are misplaced; empty: none"`
}

// CustomerID is every customer_id in the API: an installation serves one customer.
const CustomerID = "local"

// Status is the state of a box.
type Status string

// The states.
const (
	StatusCreating Status = "creating"
	StatusIdle     Status = "idle"
	StatusRunning  Status = "running"
	StatusPaused   Status = "paused"
	StatusGone     Status = "gone" // an attached box whose sandbox has ended; its policy and settings are kept
	StatusError    Status = "error"
	StatusDeleted  Status = "deleted"
)

// Enum lists the states for the description of the API.
func (Status) Enum() []string {
	return []string{string(StatusCreating), string(StatusIdle), string(StatusRunning), string(StatusPaused), string(StatusError), string(StatusDeleted)}
}

// Box is a box in the API.
type Box struct {
	ID              policy.BoxID
	Name            string // may be empty
	Labels          []string
	Size            string // small, medium or large
	Runtime         string
	KeepAlive       bool
	InitCommand     string
	Ephemeral       bool
	ExpiresAt       time.Time // zero: never
	Status          Status
	Error           string // why Status is error or gone; shown to the caller
	Progress        string // progress on its image, while Status is creating
	V4, V6          netip.Addr
	Source          policy.Source // source of its outgoing traffic; zero: the host chooses
	Limits          BoxLimits
	EffectiveLimits policy.Limits // the effective limits, where they differ from the configuration
	Policy          PolicyState
	Hosted          Hosted
	Usage           Usage
	Attached        *Attached // nil: a box that the gateway launched
	CreatedBy       string    // ID of the API key that created it; "" for the operator's and for attached boxes
	CreatedAt       time.Time
	UpdatedAt       time.Time
	LastActivity    time.Time
	Warnings        []document.Problem // such as header rules that can never match; only set by CreateBox
}

// Usage is the usage of a box since it was created.
type Usage struct {
	CPU                time.Duration
	Memory, PeakMemory int64  // bytes: current and highest
	BytesIn, BytesOut  uint64 // at its interface, to and from the box
	OOMKills           uint64 // processes killed by the OOM killer
	DiskBytes          int64  // written by the box
	DiskFiles          int64
	DiskWhole          bool      // false: the count stopped early and the real usage is higher
	DiskCountedAt      time.Time // zero: not counted yet
}

// CreateRequest describes a box to create. It has been validated, except for facts that only the service has: whether the
// name is free and the runtime exists.
type CreateRequest struct {
	Name        string // may be empty
	Labels      []string
	Snapshot    string // ID, may be empty. Fields that are empty then take the snapshot's value
	Size        string // empty only with Snapshot
	Runtime     string // "" for the default
	KeepAlive   bool
	InitCommand string // run at each start; only with KeepAlive
	Ephemeral   bool
	TTL         time.Duration // only with Ephemeral; never 0 then
	CreatedBy   string        // ID of the API key, as in [Box]
	Wait        time.Duration // how long the caller waits for the box to be ready
	Env         map[string]name.Secret
	Source      policy.Source // as in [Box]
	Limits      BoxLimits
	LimitChange LimitChange // the requested change; Limits is its result
	Policy      policy.Spec // its mode is empty with Named and with Snapshot
	Named       string      // the named policy to follow, if any
	Headers     []policy.HeaderRule
	Hosted      Hosted
	// HostedSecrets are the secret values among the hosted product's fields, by JSON pointer, such as "/github_token" or
	// "/mcp_servers/0/headers/Authorization". They never appear in a response.
	HostedSecrets map[string]name.Secret
}

// Hosted holds the fields of a create request that belong to the hosted product (agents, models, skills, git). They are
// accepted, stored and returned, but have no effect in this gateway. It contains no secrets, so it can be stored as JSON.
type Hosted struct {
	Model        string        `json:"model,omitempty"`
	Agent        string        `json:"agent,omitempty"`
	CustomRunner *CustomRunner `json:"custom_runner,omitempty"`
	Skills       []string      `json:"skills,omitempty"`
	MCPServers   []MCPServer   `json:"mcp_servers,omitempty"`
	GitUserName  string        `json:"git_user_name,omitempty"`
	GitUserEmail string        `json:"git_user_email,omitempty"`
}

// Configuration holds the settings of a box, other than its rules, that can be changed.
type Configuration struct {
	Labels []string
	Hosted Hosted
}

// AgentCustom is the agent of a box that uses a custom harness.
const AgentCustom = "custom"

// Or returns h with its empty fields taken from other.
func (h Hosted) Or(other Hosted) Hosted {
	or := func(s, other []string) []string {
		if s == nil {
			return other
		}
		return s
	}
	h.Model, h.Agent = cmp.Or(h.Model, other.Model), cmp.Or(h.Agent, other.Agent)
	h.CustomRunner, h.Skills = cmp.Or(h.CustomRunner, other.CustomRunner), or(h.Skills, other.Skills)
	if h.MCPServers == nil {
		h.MCPServers = other.MCPServers
	}
	h.GitUserName, h.GitUserEmail = cmp.Or(h.GitUserName, other.GitUserName), cmp.Or(h.GitUserEmail, other.GitUserEmail)
	return h
}

// CustomRunner is the SDK's custom harness: a command in the box that speaks the box-sse-v1 protocol.
type CustomRunner struct {
	Command  string   `json:"command"`
	Args     []string `json:"args,omitempty"`
	Protocol string   `json:"protocol,omitempty"`
}

// MCPServer is one MCP server of a create request. Of its headers, only the names are returned.
type MCPServer struct {
	Name         string   `json:"name"`
	Source       string   `json:"source"`
	PackageOrURL string   `json:"package_or_url"`
	Args         []string `json:"args,omitempty"`
	HeaderNames  []string `json:"header_names,omitempty"`
}

// BoxFilter selects boxes. The zero value selects all boxes.
type BoxFilter struct {
	Label string // only boxes with this label
}

// Workspace is the home and working directory of a box. Relative paths are relative to it.
const Workspace = "/workspace/home"

// SkippedTrailer is the trailer field with the number of files left out of an archive.
const SkippedTrailer = "X-Boxgate-Skipped"

// ExecRequest is a command to run in a box.
type ExecRequest struct {
	Command []string          // argv; never empty
	Dir     string            // absolute, in the box; [Workspace] by default
	Env     map[string]string // added to the box's environment
	Stdin   io.Reader         // nil: empty
	// Left is closed when the caller disconnects. The command continues, but no longer keeps the box awake. nil: the
	// caller stays.
	Left <-chan struct{}
}

// ExecResult is the outcome of a command.
type ExecResult struct {
	ExitCode int
	CPU      time.Duration // CPU time it used; 0 if not known
	// OutOfMemory is set if the command was killed because the box ran out of memory.
	OutOfMemory bool
}

// PolicyState is an active policy with its version. Versions only grow.
type PolicyState struct {
	Spec     policy.Spec
	Named    string // the named policy that the box follows, if any; its content is Spec
	Version  uint64
	Leases   []Lease
	Warnings []document.Problem
	Was      *PolicyState // the policy that this call replaced, or nil
}

// PolicyChange replaces the policy of a box.
type PolicyChange struct {
	Spec  policy.Spec
	Named string // the named policy to follow instead of Spec, if any
	// Keep lists the leases that continue; all others end. An entry without a running lease is a *document.InvalidError.
	// nil: deny leases continue and allow leases end.
	Keep *[]LeaseEntry
}

// HeaderState is the active set of header rules with its version.
type HeaderState struct {
	Rules    []policy.HeaderRule
	Version  uint64
	Warnings []document.Problem
	Was      []policy.HeaderRule // the rules that this call replaced
}

// URLRequest asks for a public URL. With neither Bearer nor Basic, the URL needs no credential; with both, it accepts
// either.
type URLRequest struct {
	Port      uint16 // never 0
	Bearer    bool
	Basic     bool
	Hostnames []name.Name   // custom domains of the URL; all different
	Protocol  string        // one of [URLProtocols]
	ExpiresIn time.Duration // 0: never
	Origins   []string      // canonical; see [URL.Origins]
	Accounts  *URLAccounts  // nil: no sign-in with the identity provider
}

// URLProtocols are the protocols that the gateway can use towards an application. The first is the default.
var URLProtocols = []string{"auto", "http1", "h2c", ProtocolTCP}

// ProtocolTCP is raw TCP inside TLS, passed on byte by byte.
const ProtocolTCP = "tcp"

// URL is a public URL. The credentials are set only by CreateURL.
type URL struct {
	URL                       string // "https://…", or "tls://…" for raw TCP
	Port                      uint16
	Hostnames                 []string
	Pending                   []PendingName
	Bearer, Basic             bool   // which credentials open it
	Protocol                  string // one of [URLProtocols]
	Token, Username, Password name.Secret
	CreatedAt                 time.Time
	ExpiresAt                 time.Time // zero: never
	// Origins are the additional origins whose pages may use the password or session that a browser keeps for the URL.
	Origins []string
	// Accounts lists the identity provider's accounts that may open it. nil: no sign-in with the identity provider.
	Accounts *URLAccounts
}

// PendingName is a custom domain that does not lead to its URL yet, because the TXT record that proves control of it is
// missing.
type PendingName struct {
	Hostname string
	Record   string // the name of the TXT record
	Value    string // the text of the record
}

// URLAccounts selects the accounts at the identity provider that may open a URL: they match an entry of any list.
type URLAccounts struct {
	Emails, Domains []string // in lower case
	Groups          []string
}

// LinkMethods are the HTTP methods that a link can permit.
var LinkMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// LinkRequest asks for a link to a public URL.
type LinkRequest struct {
	ExpiresIn  time.Duration
	PathPrefix string   // the path and everything below it
	Methods    []string // a subset of LinkMethods
}

// Link is a signed URL. Anyone who has it may make the requests it permits.
type Link struct {
	URL       name.Secret
	ExpiresAt time.Time
}

// EventFilter selects decisions. The zero value selects all of them.
type EventFilter struct {
	Box    policy.BoxID // "" for every box
	Since  time.Time    // zero: no limit
	After  uint64       // only decisions with a greater number
	Denied bool         // only denials
}

// EventSearch selects decisions on disk. The zero value selects all of them.
type EventSearch struct {
	Box          policy.BoxID // "" for every box
	Since, Until time.Time    // zero: no limit
	Host         string       // a name, *.name for the names below it, or an address; "" for any
	Reason       name.Reason
	Denied       bool // only denials
}

// PastEvents are the decisions still in memory.
type PastEvents struct {
	Events  []audit.Event // oldest first
	Run     string        // ID of the gateway's run; each run numbers its decisions from the start
	Missing bool          // older decisions that match the filter may have been dropped
}

// EventStream is a subscription to decisions. A slow reader loses events; Lost counts them.
type EventStream interface {
	// Events is closed when the subscription's context ends.
	Events() <-chan audit.Event
	// Lost returns the number of events dropped so far.
	Lost() uint64
}
