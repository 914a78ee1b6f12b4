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

// StoreReport is what was found when the store was read.
type StoreReport struct {
	Documents int      `json:"documents" doc:"how many there are"`
	Problems  []string `json:"problems" doc:"what cannot be read, or is not where it belongs; empty: nothing"`
}

// CustomerID is the customer_id everywhere: one installation serves one customer.
const CustomerID = "local"

// Status is the state of a box.
type Status string

// The states.
const (
	StatusCreating Status = "creating"
	StatusIdle     Status = "idle"
	StatusRunning  Status = "running"
	StatusPaused   Status = "paused"
	StatusGone     Status = "gone" // of an attached box: its sandbox has ended; what belongs to the box is kept
	StatusError    Status = "error"
	StatusDeleted  Status = "deleted"
)

// Enum lists the states for the description of the API.
func (Status) Enum() []string {
	return []string{string(StatusCreating), string(StatusIdle), string(StatusRunning), string(StatusPaused), string(StatusError), string(StatusDeleted)}
}

// Box is a box as the API shows it.
type Box struct {
	ID           policy.BoxID
	Name         string // "" if none was given
	Labels       []string
	Size         string // small, medium or large
	Runtime      string
	KeepAlive    bool
	InitCommand  string
	Ephemeral    bool
	ExpiresAt    time.Time // zero: never
	Status       Status
	Error        string // why Status is error or gone, for the caller's eyes
	Progress     string // what is being done about its image, while Status is creating
	V4, V6       netip.Addr
	Source       policy.Source // from where its traffic leaves; zero: the host chooses
	Limits       BoxLimits
	OwnLimits    policy.Limits // what Limits come to, where that differs from the configuration
	Policy       PolicyState
	Hosted       Hosted
	Usage        Usage
	Attached     *Attached // nil: launched here
	CreatedBy    string    // ID of the API key that created it; "" for the operator's, and for boxes that were attached
	CreatedAt    time.Time
	UpdatedAt    time.Time
	LastActivity time.Time
	Warnings     []document.Problem // such as header rules that can never apply; only read after CreateBox
}

// Usage is what a box has used since it was created.
type Usage struct {
	CPU                time.Duration
	Memory, PeakMemory int64  // bytes, now and at most
	BytesIn, BytesOut  uint64 // at its interface: towards the box, and from it
	OOMKills           uint64 // processes killed because its memory ran out
	DiskBytes          int64  // of what it has written
	DiskFiles          int64
	DiskWhole          bool      // false: there is more than was counted
	DiskCountedAt      time.Time // zero: not counted yet
}

// CreateRequest describes a box to create. Everything in it has been validated except what only the Host knows: whether
// the name is free and the runtime exists.
type CreateRequest struct {
	Name        string // "" for none
	Labels      []string
	Snapshot    string // its ID; "": none. What else is empty then is as the snapshot has it
	Size        string // empty only with Snapshot
	Runtime     string // "" for the default
	KeepAlive   bool
	InitCommand string // run at each start; only with KeepAlive
	Ephemeral   bool
	TTL         time.Duration // only with Ephemeral; never 0 then
	CreatedBy   string        // ID of the API key, as in [Box]
	Wait        time.Duration // how long the caller waits for the box to be made
	Env         map[string]name.Secret
	Source      policy.Source // as in [Box]
	Limits      BoxLimits
	LimitChange LimitChange // asked for; Limits says what that comes to
	Policy      policy.Spec // its mode is empty with Named, and with Snapshot
	Named       string      // the named policy that it is to follow; "": none
	Headers     []policy.HeaderRule
	Hosted      Hosted
	// HostedSecrets are the secret values among the hosted product's fields, by JSON pointer, such as "/github_token"
	// or "/mcp_servers/0/headers/Authorization". No answer ever contains them.
	HostedSecrets map[string]name.Secret
}

// Hosted holds the fields of a create that belong to the hosted product (agents, models, skills, git): accepted, kept
// and read back, without effect in this gateway. It has no secrets, so it can be stored as JSON.
type Hosted struct {
	Model        string        `json:"model,omitempty"`
	Agent        string        `json:"agent,omitempty"`
	CustomRunner *CustomRunner `json:"custom_runner,omitempty"`
	Skills       []string      `json:"skills,omitempty"`
	MCPServers   []MCPServer   `json:"mcp_servers,omitempty"`
	GitUserName  string        `json:"git_user_name,omitempty"`
	GitUserEmail string        `json:"git_user_email,omitempty"`
}

// Configuration is what can be changed of a box besides its rules.
type Configuration struct {
	Labels []string
	Hosted Hosted
}

// AgentCustom is the agent of a box whose agent is its custom harness.
const AgentCustom = "custom"

// Or returns h with the fields of other for those that are empty.
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

// CustomRunner is the SDK's custom harness: a command in the box that writes the box-sse-v1 protocol.
type CustomRunner struct {
	Command  string   `json:"command"`
	Args     []string `json:"args,omitempty"`
	Protocol string   `json:"protocol,omitempty"`
}

// MCPServer is one MCP server of a create; only the names of its headers are read back.
type MCPServer struct {
	Name         string   `json:"name"`
	Source       string   `json:"source"`
	PackageOrURL string   `json:"package_or_url"`
	Args         []string `json:"args,omitempty"`
	HeaderNames  []string `json:"header_names,omitempty"`
}

// BoxFilter selects boxes. The zero value selects all.
type BoxFilter struct {
	Label string // only boxes with this label
}

// Workspace is the home and the working directory of a box: relative paths are below it.
const Workspace = "/workspace/home"

// SkippedTrailer is the trailer field with the number of files that were left out of an archive.
const SkippedTrailer = "X-Boxgate-Skipped"

// ExecRequest is a command to run in a box.
type ExecRequest struct {
	Command []string          // argv; never empty
	Dir     string            // absolute, in the box; [Workspace] unless the caller said otherwise
	Env     map[string]string // added to that of the box
	Stdin   io.Reader         // nil: empty
	// Left is closed when the caller has gone. The command goes on, but no longer keeps the box awake. nil: the caller stays.
	Left <-chan struct{}
}

// ExecResult is how a command ended.
type ExecResult struct {
	ExitCode int
	CPU      time.Duration // CPU time it used; 0 if not known
	// OutOfMemory: it was killed because the box's memory ran out.
	OutOfMemory bool
}

// PolicyState is a policy in force and its version. Versions only grow.
type PolicyState struct {
	Spec     policy.Spec
	Named    string // the named policy that the box follows, which says Spec; "": none
	Version  uint64
	Leases   []Lease
	Warnings []document.Problem
	Was      *PolicyState // replaced by the call that returned it; nil if it has replaced none
}

// PolicyChange replaces the policy of a box.
type PolicyChange struct {
	Spec  policy.Spec
	Named string // the named policy that the box is to follow, instead of Spec; "": none
	// Keep are the leases that go on; any other ends. One that does not run is a *document.InvalidError. nil: those that
	// deny go on, those that allow end.
	Keep *[]LeaseEntry
}

// HeaderState is a set of header rules in force and its version.
type HeaderState struct {
	Rules    []policy.HeaderRule
	Version  uint64
	Warnings []document.Problem
	Was      []policy.HeaderRule // replaced by the call that returned it
}

// URLRequest asks for a public URL. With neither Bearer nor Basic the URL needs no credential; with both, it accepts
// either.
type URLRequest struct {
	Port      uint16 // never 0
	Bearer    bool
	Basic     bool
	Hostnames []name.Name   // domains of its own that lead to it too; all different
	Protocol  string        // one of [URLProtocols]
	ExpiresIn time.Duration // 0: never
	Origins   []string      // canonical; see URL
	Accounts  *URLAccounts  // nil: accounts at the identity provider are no way in
}

// URLProtocols are what an application can be said to speak to the gateway; the first is the default.
var URLProtocols = []string{"auto", "http1", "h2c", ProtocolTCP}

// ProtocolTCP is anything in TLS, passed on byte by byte.
const ProtocolTCP = "tcp"

// URL is a public URL. The credentials are set only in the answer of CreateURL.
type URL struct {
	URL                       string // "https://…", or "tls://…" for raw TCP
	Port                      uint16
	Hostnames                 []string
	Pending                   []PendingName
	Bearer, Basic             bool   // how it may be opened
	Protocol                  string // one of [URLProtocols]
	Token, Username, Password name.Secret
	CreatedAt                 time.Time
	ExpiresAt                 time.Time // zero: never
	// Origins are those, other than its own, whose pages may use the password or the session that a browser keeps for the URL.
	Origins []string
	// Accounts says whose accounts at the identity provider it lets in; nil: nobody's.
	Accounts *URLAccounts
}

// PendingName is a domain of a URL's own that does not lead to it yet: first the caller shows that it is his, by a TXT record.
type PendingName struct {
	Hostname string
	Record   string // the name of the TXT record
	Value    string // its text
}

// URLAccounts says whose accounts at the identity provider open a URL: those that one of the lists names.
type URLAccounts struct {
	Emails, Domains []string // in lower case
	Groups          []string
}

// LinkMethods are the methods that a link can permit.
var LinkMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// LinkRequest asks for a link to a public URL.
type LinkRequest struct {
	ExpiresIn  time.Duration
	PathPrefix string   // as in a URL: the path itself, and all below it
	Methods    []string // some of LinkMethods
}

// Link is a signed URL: whoever has it may do what was asked for.
type Link struct {
	URL       name.Secret
	ExpiresAt time.Time
}

// EventFilter selects decisions. The zero value selects all.
type EventFilter struct {
	Box    policy.BoxID // "" for every box
	Since  time.Time    // zero: no limit
	After  uint64       // decisions with a greater number
	Denied bool         // only denials
}

// EventSearch selects decisions on disk. The zero value selects all.
type EventSearch struct {
	Box          policy.BoxID // "" for every box
	Since, Until time.Time    // zero: no limit
	Host         string       // a name, *.name for those below it, or an address; "" for every one
	Reason       name.Reason
	Denied       bool // only denials
}

// PastEvents are the decisions that are remembered.
type PastEvents struct {
	Events  []audit.Event // oldest first
	Run     string        // identifies this run of the gateway; each run numbers its decisions on its own
	Missing bool          // some that the filter selects may have been forgotten
}

// EventStream is a subscription to decisions. A reader that is too slow loses events and is told how many.
type EventStream interface {
	// Events is closed when the subscription's context ends.
	Events() <-chan audit.Event
	// Lost is the number of events dropped so far.
	Lost() uint64
}
