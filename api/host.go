package api

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Host owns the boxes; the API is a front end to it. Every method may be called concurrently and must respect ctx. id
// is always a [Box.ID] that an earlier call returned; if the box has gone since, the error is an [ErrNotFound].
//
// An error made by [Errorf] is shown to the caller with the status of its kind; a *[document.InvalidError] becomes a 422
// with its pointers; any other error is logged and answered with a 500 without detail.
type Host interface {
	// CreateBox returns once the box can run commands, or earlier with StatusCreating (clients poll). A name already in
	// use is an ErrConflict; a runtime or field that cannot be honoured is a *document.InvalidError.
	CreateBox(ctx context.Context, req CreateRequest) (Box, error)
	// AttachBox attaches an existing network namespace to the gateway and returns once its policy is in force. A
	// namespace that cannot be found or used is a *document.InvalidError.
	AttachBox(ctx context.Context, req AttachRequest) (Box, error)
	// DetachBox takes an attached box off the network and forgets it; a box that was launched here is an ErrConflict.
	DetachBox(ctx context.Context, id policy.BoxID) error
	// Box finds a box by its ID or its name; the ID wins.
	Box(ctx context.Context, idOrName string) (Box, error)
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f BoxFilter) ([]Box, error)
	// DeleteBox stops the box, cuts its connections and forgets it.
	DeleteBox(ctx context.Context, id policy.BoxID) error
	// Exec runs a command to its end and copies its output as it comes; the two writers are safe for concurrent use and
	// only block while the API's client does. After one has failed, the rest of its stream is thrown away, no faster than a
	// box may have the gateway do that. When ctx ends the command is killed and ctx's error returned. A command that ran is
	// not an error, whatever its exit code.
	Exec(ctx context.Context, id policy.BoxID, req ExecRequest, stdout, stderr io.Writer) (ExecResult, error)

	// Policy returns the policy in force.
	Policy(ctx context.Context, id policy.BoxID) (PolicyState, error)
	// SetPolicy returns after the new policy is in force everywhere. If ifMatch is not nil and is not the version in
	// force, nothing changes and the error is ErrPrecondition.
	SetPolicy(ctx context.Context, id policy.BoxID, set PolicyChange, ifMatch *uint64) (PolicyState, error)
	// Explain says how the policy in force would decide; nothing is sent.
	// knowsQuery says that a request without a query is known to have none.
	Explain(ctx context.Context, id policy.BoxID, req policy.Request, knowsQuery bool) (policy.Decision, policy.Unseen, error)

	// Headers returns the box's own header rules.
	Headers(ctx context.Context, id policy.BoxID) (HeaderState, error)
	// SetHeaders replaces the box's own header rules, with ifMatch as in SetPolicy.
	SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (HeaderState, error)
	// GlobalHeaders returns the rules that apply to every box.
	GlobalHeaders(ctx context.Context) (HeaderState, error)
	// SetGlobalHeaders replaces them, in force in every box when it returns.
	SetGlobalHeaders(ctx context.Context, rules []policy.HeaderRule, ifMatch *uint64) (HeaderState, error)

	// URLs lists the box's public URLs by port, without credentials.
	URLs(ctx context.Context, id policy.BoxID) ([]URL, error)
	// CreateURL makes the public URL of a port. An existing one is replaced, with new credentials, and connections
	// opened with the old ones are cut. A domain that is another URL's, or was another key's until recently, is an ErrConflict, and one
	// that the operator keeps for others an ErrForbidden. A domain that the caller has not shown to be his is pending.
	CreateURL(ctx context.Context, id policy.BoxID, req URLRequest) (URL, error)
	// SignURL makes a link that permits some requests to the public URL of a port.
	SignURL(ctx context.Context, id policy.BoxID, port uint16, req LinkRequest) (Link, error)
	// DeleteURL removes the public URL of a port and cuts its connections.
	DeleteURL(ctx context.Context, id policy.BoxID, port uint16) error

	// RecentEvents returns the decisions still remembered.
	RecentEvents(ctx context.Context, f EventFilter) (PastEvents, error)
	// FollowEvents delivers the decisions made from now on until ctx ends.
	FollowEvents(ctx context.Context, f EventFilter) (EventStream, error)

	// SearchEvents calls begin with the time from which on no decision about the boxes of the filter is missing, and then do with the
	// decisions on disk that it selects, oldest first. If none are kept, the error is an ErrConflict.
	SearchEvents(ctx context.Context, f EventSearch, begin func(whole time.Time), do func(audit.Event) error) error

	// SelfTest tries from inside the box what a hostile program there would try. A hole is reported, but is not an
	// error; a self-test that cannot start because another is running is an ErrConflict.
	SelfTest(ctx context.Context, id policy.BoxID) (SelfTestReport, error)

	// CA returns the PEM of the box's interception CA certificate.
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
	// IngressCA returns the PEM of the internal CA that signs public URLs; ErrNotFound if another issuer does.
	IngressCA(ctx context.Context) ([]byte, error)

	// RotateStoreKey re-encrypts every secret of the store with a new key file or the new passphrase. The passphrase
	// must be given if, and only if, the store has one; else the error is a *document.InvalidError.
	RotateStoreKey(ctx context.Context, newPassphrase name.Secret) error
	// BackupStore writes a copy of the store as it is at one moment, with its secrets encrypted.
	BackupStore(ctx context.Context, w io.Writer) error
	// VerifyStore reads every document of the store.
	VerifyStore(ctx context.Context) (StoreReport, error)
	// RotateAPIKey makes a new API key and writes it where the commands on the gateway's host find it. Earlier keys
	// stop working after grace.
	RotateAPIKey(ctx context.Context, grace time.Duration) error

	// Secrets returns the state of every secret of the configuration, by name.
	Secrets(ctx context.Context) ([]SecretStatus, error)
	// RefreshSecret gives up the value of a secret, cuts the connections that carry it, and reads it anew; the state says
	// whether that succeeded. A secret that cannot change while the gateway runs is an ErrConflict.
	RefreshSecret(ctx context.Context, name string) (SecretStatus, error)

	// IdentityKeys returns the public keys of the tokens that forwarded requests carry, as a JSON Web Key Set.
	IdentityKeys(ctx context.Context) (json.RawMessage, error)

	// Ready returns nil when boxes can be created and served and every listener accepts connections. Otherwise the error names the
	// obstacle.
	Ready(ctx context.Context) error
	// Capacity returns the use of the gateway's bounded resources.
	Capacity(ctx context.Context) (Capacity, error)
}

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
