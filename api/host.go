package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/llm"
	"boxgate/observe/replay"
	"boxgate/policy"
	"boxgate/policy/authority"
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
	// StatusUnreachable is that of a box of another host of the fleet that does not answer. No box of this host has it.
	StatusUnreachable Status = "unreachable"
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
	Metadata        map[string]string // never changed; may be nil
	Size            string            // small, medium or large
	Runtime         string
	KeepAlive       bool
	InitCommand     string
	User, Home      string // its ordinary user and the home directory; "": [OrdinaryUser], [Workspace]
	Ephemeral       bool
	ExpiresAt       time.Time // zero: never
	OnEnd           string    // [EndPause], or "" for [EndDelete]
	AutoResume      bool      // after a pause at its end, any use resumes it, not only a call of resume
	PausedAtEnd     bool      // it was paused at its end; ExpiresAt is when it is deleted
	Status          Status
	Error           string // why Status is error or gone; shown to the caller
	Progress        string // progress on its image, while Status is creating
	Root            bool   // code in the box may become its root; see launcher.root
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
	Models             ModelUsage
}

// UsageSamples are the use of a box over time, and the resources that it may use.
type UsageSamples struct {
	Interval time.Duration
	CPUs     float64
	Memory   int64         // bytes
	Disk     int64         // bytes; 0: not limited
	Samples  []UsageSample // the oldest first
}

// UsageSample is the use of a box in the interval before a time.
type UsageSample struct {
	At            time.Time
	CPUs          float64 // busy ones, on average
	Memory, Cache int64   // bytes; Memory contains Cache
	Disk          int64   // bytes, as last counted
}

// ModelSum is the use of one model, or of several.
type ModelSum struct {
	Model string // letters, digits and . _ - : / @ + only; empty: all
	llm.Usage
	USD llm.Money
}

// ModelUsage is the use of models by a box, or by the boxes of an API key.
type ModelUsage struct {
	ModelSum                 // of all models
	Models        []ModelSum // at most 33, the dearest first
	AssumedTokens uint64     // charged without a report of the vendor
	AssumedUSD    llm.Money
	Budgets       []ModelBudget // the limits that apply
}

// ModelBudget is a limit of models with its use.
type ModelBudget struct {
	Of             string // box, key or all
	Limit          llm.Limit
	Used, Reserved uint64 // tokens
	UsedUSD        llm.Money
	ReservedUSD    llm.Money
	Ends           time.Time // of the period; zero: never
}

// Ratio returns the used and reserved part of the limit, the larger one of tokens and dollars.
func (b ModelBudget) Ratio() float64 {
	most := 0.0
	if b.Limit.Tokens > 0 {
		most = float64(llm.Add(b.Used, b.Reserved)) / float64(b.Limit.Tokens)
	}
	if b.Limit.USD > 0 {
		most = max(most, float64(b.UsedUSD.Plus(b.ReservedUSD))/float64(b.Limit.USD))
	}
	return most
}

// BoxUser is the user of commands in a box that name no other.
const BoxUser = "boxuser"

// MaxTTL is the maximum time from now to the end of a box.
const MaxTTL = 3 * 24 * time.Hour

// What happens to a box at its end.
const (
	EndDelete = "delete" // the default
	EndPause  = "pause"  // it is paused until it is resumed, which gives it a new time to live
)

// End sets what happens at the end of a box.
type End struct {
	OnEnd      string // [EndDelete] or [EndPause]
	AutoResume bool   // as in [Box]; only with EndPause
}

// Lifetime moves the end of a box. One field is set.
type Lifetime struct {
	TTL       time.Duration // from now
	Extend    time.Duration // after its present end; an ErrConflict without one
	Unlimited bool          // it has no end
}

// CreateRequest describes a box to create. It has been validated, except for facts that only the service has: whether the
// name is free and the runtime exists.
type CreateRequest struct {
	Name        string // may be empty
	Labels      []string
	Metadata    map[string]string
	Snapshot    string // ID, may be empty. Fields that are empty then take the snapshot's value
	Size        string // empty only with Snapshot
	Runtime     string // "" for the default
	KeepAlive   bool
	InitCommand string // run at each start; only with KeepAlive
	User, Home  string // as in [Box]
	Ephemeral   bool
	TTL         time.Duration // only with Ephemeral; never 0 then, before launcher.max_ttl is applied
	End         End           // OnEnd may be "", which is EndDelete
	CreatedBy   string        // ID of the API key, as in [Box]
	Wait        time.Duration // how long the caller waits for the box to be ready
	Env         map[string]name.Secret
	Source      policy.Source // as in [Box]
	Limits      BoxLimits
	LimitChange LimitChange // the requested change; Limits is its result
	ModelLimit  *llm.Limit  // likewise, of the limit of models; nil: no change
	Policy      policy.Spec // its mode is empty with Named and with Snapshot
	Named       string      // the named policy to follow, if any
	Headers     []policy.HeaderRule
	Hosted      Hosted
	// HostedSecrets are the secret values among the hosted product's fields, by JSON pointer, such as "/github_token". They never appear in a response.
	HostedSecrets map[string]name.Secret
}

// Hosted holds the agent of a box and the identity of its commits. It contains no secrets, so it can be stored as JSON.
type Hosted struct {
	Model        string        `json:"model,omitempty"`
	Agent        string        `json:"agent,omitempty"`
	BaseURL      string        `json:"base_url,omitempty"`        // server of the model; "": by the model's name
	BaseURLOfEnv bool          `json:"base_url_of_env,omitempty"` // BaseURL is from a variable, whose value is not shown
	CustomRunner *CustomRunner `json:"custom_runner,omitempty"`
	Skills       []string      `json:"skills,omitempty"`
	MCPServers   []MCPServer   `json:"mcp_servers,omitempty"`
	GitUserName  string        `json:"git_user_name,omitempty"`
	GitUserEmail string        `json:"git_user_email,omitempty"`

	SkillsRemoved bool        `json:"skills_removed,omitempty"` // a skill was removed, and its files may still be in the box
	Session       string      `json:"session,omitempty"`        // the agent's last conversation
	Totals        AgentTotals `json:"totals,omitzero"`
}

// AgentTotals sums up the runs of a box's agent, as its harness reported them.
type AgentTotals struct {
	Prompts      int64 `json:"prompts,omitempty"`
	InputTokens  int64 `json:"input_tokens,omitempty"`
	OutputTokens int64 `json:"output_tokens,omitempty"`
}

// Configuration holds the settings of a box, other than its rules, that can be changed.
type Configuration struct {
	Labels   []string
	Metadata map[string]string // replaced, not changed
	Hosted   Hosted
}

// AgentCustom is the agent of a box that uses a custom harness.
const AgentCustom = "custom"

// Or returns h with its empty fields taken from other. The totals are h's. The conversation is taken if the harness is the same, and
// the server if the model is too.
func (h Hosted) Or(other Hosted) Hosted {
	or := func(s, other []string) []string {
		if s == nil {
			return other
		}
		return s
	}
	if h.Agent == "" || h.Agent == other.Agent {
		h.Session = cmp.Or(h.Session, other.Session)
	}
	if h.Agent == "" && h.Model == "" && h.BaseURL == "" {
		h.BaseURL, h.BaseURLOfEnv = other.BaseURL, other.BaseURLOfEnv
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
	Label    string            // only boxes with this label
	Metadata map[string]string // only boxes with all these entries
}

// Selects reports whether a box is selected.
func (f BoxFilter) Selects(b Box) bool {
	for key, value := range f.Metadata {
		if has, ok := b.Metadata[key]; !ok || has != value {
			return false
		}
	}
	return f.Label == "" || slices.Contains(b.Labels, f.Label)
}

// Workspace is the home and working directory of a box, unless it was created with another one. Relative paths are relative to it.
const Workspace = "/workspace/home"

// OrdinaryUser is the name of a box's ordinary user, unless it was created with another one.
const OrdinaryUser = "boxuser"

// HomeDir returns the home and working directory of the box's ordinary user.
func (b Box) HomeDir() string { return cmp.Or(b.Home, Workspace) }

// UserName returns the name of the box's ordinary user.
func (b Box) UserName() string { return cmp.Or(b.User, OrdinaryUser) }

// SkippedTrailer is the trailer field with the number of files left out of an archive.
const SkippedTrailer = "X-Boxgate-Skipped"

// ExecRequest is a command to run in a box.
type ExecRequest struct {
	Command []string          // argv; never empty
	Dir     string            // absolute, in the box; empty: the home directory
	Env     map[string]string // added to the box's environment
	User    string            // as checked by [boxgate/api/spec.User]; empty: the box's user
	Stdin   io.Reader         // nil: empty
	// Left is closed when the caller disconnects. The command continues, but no longer keeps the box awake. nil: the
	// caller stays.
	Left <-chan struct{}
	// Timeout is for [Client.Exec] and [Client.Start]; 0: no limit. A Host ignores it: the API ends ctx instead.
	Timeout time.Duration
}

// ExecResult is the outcome of a command.
type ExecResult struct {
	ExitCode int
	Signal   string        // the signal that killed it, without the prefix SIG, if the kernel has reported one
	CPU      time.Duration // CPU time it used; 0 if not known
	// OutOfMemory is set if the command was killed because the box ran out of memory.
	OutOfMemory bool
	TimedOut    bool // it was killed after its timeout
}

// PolicyState is an active policy with its version. Versions only grow.
type PolicyState struct {
	Spec     policy.Spec
	Named    string // the named policy that the box follows, if any; its content is Spec
	Version  uint64
	Leases   []Lease
	Warnings []document.Problem
	Was      *PolicyState // the policy that this call replaced, or nil
	Headers  *HeaderState // the box's own header rules, of a call that reads or sets both; else nil
}

// Audit returns the lease for whose time the policy is audited instead of enforced, if there is one.
func (s PolicyState) Audit() (l Lease, audited bool) {
	if i := slices.IndexFunc(s.Leases, func(l Lease) bool { return l.Audit }); i >= 0 {
		return s.Leases[i], true
	}
	return Lease{}, false
}

// PolicyChange replaces the policy of a box.
type PolicyChange struct {
	Spec  policy.Spec
	Named string // the named policy to follow instead of Spec, if any
	// Keep lists the leases that continue; all others end. An entry without a running lease is a *document.InvalidError.
	// nil: deny leases continue and allow leases end.
	Keep *[]LeaseEntry
	// Headers replaces the box's own header rules in the same change; nil: they stay.
	Headers *HeaderChange
}

// HeaderChange replaces the header rules of a box together with its policy: no request is judged by one of the new and one of
// the old.
type HeaderChange struct {
	Rules   []policy.HeaderRule
	IfMatch *uint64 // the version of the header rules that must be in force, else the error is an ErrPrecondition; nil: any
}

// ReplayQuery selects what a candidate policy is compared with.
type ReplayQuery struct {
	Since   time.Time // only traffic seen at or after it
	Against uint64    // this version of the policy; 0: the policy in force
}

// Replay compares a candidate policy with the policy in force, or with a version of it: on the traffic of a box, and in the destinations that they allow.
type Replay struct {
	Version    uint64 // of the policy in force
	Result     replay.Result
	Authority  authority.Difference
	Overflow   uint64    // decisions without an observation, see [observe.Summary]
	Lost       uint64    // decisions that arrived faster than they could be summed up
	Complete   time.Time // older observations may have been removed; zero: none were
	Unobserved bool      // the gateway keeps no observations
	Warnings   []document.Problem
}

// HeaderState is the active set of header rules with its version.
type HeaderState struct {
	Rules    []policy.HeaderRule
	Version  uint64
	Warnings []document.Problem
	Was      []policy.HeaderRule // the rules that this call replaced
	Fleet    bool                // they are the global rules of the fleet
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

// PortsRequest shares the TCP ports of a box at their public host names.
type PortsRequest struct {
	Public    bool     // no token is needed
	KeepToken bool     // the token stays; otherwise there is a new one
	Token     string   // the new token; "": a random one
	Except    []uint16 // ports that are not shared
	Host      string   // the Host field for applications, in which ${PORT} stands for the port; "": the visitor's
	HTTPS     []uint16 // ports whose applications speak TLS
}

// Ports are the shared ports of a box. The token is set only by SharePorts, if it is new.
type Ports struct {
	URL          string // in which {port} stands for the port
	Public       bool
	Token        name.Secret
	Fingerprint  string   // of the token, see [TokenFingerprint]; "": there is no token
	TokenHeaders []string // fields that may have the token, besides Authorization
	Except       []uint16
	Host         string
	HTTPS        []uint16
	SharedAt     time.Time
}

// TokenFingerprint returns the fingerprint of a token for ports: eight hexadecimal digits, different for nearly all tokens, and not enough to find one.
func TokenFingerprint(token string) string {
	sum := sha256.Sum256([]byte("boxgate token fingerprint\x00" + token))
	return hex.EncodeToString(sum[:4])
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

// BoxLimits are the limits of one box. Operator is set with an admin key and overrides the configured limits. Own is set
// with other keys and counts only where it is lower.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`

	// The limits of models. Where both are set, both apply.
	OperatorModel llm.Limit `json:"operator_model,omitzero"`
	OwnModel      llm.Limit `json:"own_model,omitzero"`
}

// LimitChange is a change of limits. A value of 0 unsets the limit.
type LimitChange map[policy.Limit]int64

// Effective returns the effective limits of the box, given the configured limits.
func (b BoxLimits) Effective(host policy.Limits) policy.Limits {
	return b.Own.Within(b.Operator.Over(host))
}

// WithChange returns the limits after a change by a caller. An admin key may set any value. Any other key may only go below
// the operator's limits; more is an ErrForbidden.
func (b BoxLimits) WithChange(caller Caller, host policy.Limits, change LimitChange) (BoxLimits, error) {
	given := b.Operator.Over(host)
	for limit, n := range change {
		if caller.Role == RoleAdmin {
			b.Operator[limit], b.Own[limit] = n, 0
			continue
		}
		if n != 0 && policy.Exceeds(n, given[limit]) {
			return BoxLimits{}, Errorf(ErrForbidden, "the limit %s is %d on this gateway, and only an API key with the role %s may set more",
				limit, given[limit], RoleAdmin)
		}
		b.Own[limit] = n
	}
	return b, nil
}

// Models returns the limits of models that apply to the box, given the configured one.
func (b BoxLimits) Models(host llm.Limit) (all []llm.Limit) {
	if b.OperatorModel.IsSet() {
		host = b.OperatorModel
	}
	for _, l := range []llm.Limit{host, b.OwnModel} {
		if l.Bounds() {
			all = append(all, l)
		}
	}
	return all
}

// WithModel returns the limits after a change of the limit of models by a caller; nil has no effect, and a limit that is not set
// restores that of the configuration. That of an admin key replaces the configured one. That of any other key applies besides it.
func (b BoxLimits) WithModel(caller Caller, change *llm.Limit) BoxLimits {
	switch {
	case change == nil:
	case caller.Role == RoleAdmin:
		b.OperatorModel, b.OwnModel = *change, llm.Limit{}
	default:
		b.OwnModel = *change
	}
	return b
}

// The kernel's limits for starting a command: no argument or variable may exceed MAX_ARG_STRLEN, and all of them together
// a quarter of the stack limit, 2 MiB. The division below leaves space for placeholders (at most 2 × 512 of 184 bytes)
// and for the variables that the launcher sets.
const (
	MaxArgument    = 128<<10 - 1 // bytes of one argument or variable, without its NUL
	ArgumentCost   = 1 + 8       // per argument or variable: its NUL and the pointer to it
	MaxArguments   = 512 << 10   // bytes of all arguments, including ArgumentCost
	MaxEnvironment = 1 << 20     // bytes of all variables of a box, including ArgumentCost
)

// EnvironmentSize returns how much the variables of a box count towards [MaxEnvironment].
func EnvironmentSize(vars map[string]name.Secret) int {
	sum := 0
	for name, value := range vars {
		sum += len(name) + len("=") + len(value.Reveal()) + ArgumentCost
	}
	return sum
}

// The kinds of an attached sandbox.
const (
	AttachNetNS  = "netns"  // the path of a network namespace
	AttachPID    = "pid"    // a process in that namespace
	AttachDocker = "docker" // a Docker container
	AttachOCI    = "oci"    // a container of `gateway oci`; its box is deleted when it ends
	AttachCNI    = "cni"    // a network namespace that a container runtime passed to the CNI plugin
	AttachTap    = "tap"    // a tap in the network namespace of the gateway, for a virtual machine
	AttachRemote = "remote" // a sandbox elsewhere, which uses the remote listener with a token
)

// RemoteNote is the condition under which the policy of a remote box holds.
const RemoteNote = "the gateway judges only what this sandbox sends to remote.listen: the sandbox's own network must leave no other way out"

// Which network stack the interface of an attached box belongs to.
const (
	StackHost  = "host"  // that of the namespace
	StackGuest = "guest" // that of the sandbox: the gateway sets the interface up once and then leaves it alone
)

// Attached identifies the sandbox that was attached, as its caller named it.
type Attached struct {
	Kind  string `json:"kind" enum:"netns pid docker oci cni tap remote"` // one of the constants
	Ref   string `json:"ref"`                                             // for AttachCNI: see [CNIRef]
	Stack string `json:"stack" enum:"host guest"`                         // one of the constants
	PID   int    `json:"-"`                                               // Ref as a number, for AttachPID; a process of the container, for AttachOCI
	// Container is the ID of the Docker container that Ref named when it was attached.
	Container string `json:"container_id,omitempty" doc:"ID of the Docker container; used to find the container again after a restart"`
	// Runtime is the program that runs the container, for AttachOCI.
	Runtime string `json:"runtime,omitempty" doc:"OCI runtime of the container"`
	// NetNS is the path of the namespace, for AttachCNI.
	NetNS string `json:"netns,omitempty" doc:"path of the network namespace of a CNI attachment"`
	// Pod is the Kubernetes pod, NAMESPACE/NAME, for AttachCNI. Its namespace decides which policies of resources it may follow.
	Pod string `json:"pod,omitempty" doc:"Kubernetes pod of a CNI attachment, as namespace/name"`
	Tap *Tap   `json:"tap,omitempty" doc:"the interface of a virtual machine"`
	// Note is set for AttachOCI under a runtime with limits.
	Note string `json:"note,omitempty" doc:"limits of its runtime"`
	// Remote is set for AttachRemote.
	Remote *Remote `json:"remote,omitempty" doc:"a sandbox elsewhere"`
}

// Remote describes the access of a sandbox elsewhere.
type Remote struct {
	TokenExpiresAt int64  `json:"token_expires_at,omitempty" doc:"when its token becomes invalid, in Unix seconds; absent: it has none"`
	Note           string `json:"note" doc:"the condition under which its policy holds"`
}

// RemoteToken is a new token of a remote box.
type RemoteToken struct {
	Token   string // shown once
	Expires time.Time
	Listen  string // address of the remote listener, as configured
}

// Tap is the interface of a virtual machine, and the configuration of its network. Packets from other addresses are dropped.
type Tap struct {
	Name       string         `json:"name"`
	Owner      int            `json:"owner" doc:"ID of the user who may open it; 0: root"`
	MultiQueue bool           `json:"multi_queue" doc:"the VMM opens it with several queues"`
	NoDHCP     bool           `json:"no_dhcp" doc:"the gateway answers no DHCP there"`
	MAC        string         `json:"mac" doc:"hardware address of the interface in the virtual machine"`
	Addresses  []netip.Prefix `json:"addresses"`
	Gateways   []netip.Addr   `json:"gateways" doc:"next hops of the default routes, also the DNS servers"`
	KernelIP   string         `json:"kernel_argument" doc:"configures IPv4 in a Linux kernel without DHCP"`
}

// CNIRef is the Ref of a CNI attachment: network, container ID and interface, which identify it according to the CNI specification.
// None of them contains a slash.
func CNIRef(network, container, ifname string) string {
	return network + "/" + container + "/" + ifname
}

// CNIName is the name of the box of a CNI attachment, so that there is at most one, and it is found by its reference.
func CNIName(ref string) string {
	sum := sha256.Sum256([]byte(ref))
	return "cni-" + hex.EncodeToString(sum[:12])
}

// ResourceName is the name of the policy of a BoxgatePolicy NAMESPACE/NAME. Calls of the API make no named policy with a dot, and
// namespaces have no dots, so it is unique.
func ResourceName(resource string) string { return strings.Replace(resource, "/", ".", 1) }

// AttachRequest is a request to attach, validated as a [CreateRequest] is.
type AttachRequest struct {
	Attached
	Search  []string // search list of its resolver, if the caller knows it; nil: that of a process in the namespace
	Name    string   // may be empty
	Labels  []string
	Source  policy.Source // as in [Box]
	Limits  BoxLimits     // likewise
	Policy  policy.Spec
	Named   string // as in [CreateRequest]
	Headers []policy.HeaderRule

	LimitChange LimitChange // as in [CreateRequest]
	ModelLimit  *llm.Limit  // likewise
}

// SessionRequest is a command to run interactively: the caller writes its input, can send it signals, and may give it a
// terminal.
type SessionRequest struct {
	Command  []string          // argv; never empty
	Dir      string            // absolute, in the box
	Env      map[string]string // added to the box's environment and overrides it, except for the tokens of header rules
	User     string            // as in ExecRequest
	Terminal *TerminalSize     // nil: stdin, stdout and stderr as separate streams
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Rows, Cols uint16 }

// MaxDimension bounds the rows and columns of a terminal, because programs allocate memory in proportion to them.
const MaxDimension = 4096

// SessionSignals are the signals that can be sent to a session, without the prefix SIG.
var SessionSignals = []string{"TERM", "KILL", "INT", "HUP", "TSTP", "QUIT", "USR1", "USR2"}

// IsSessionSignal reports whether the signal can be sent to a session.
func IsSessionSignal(name string) bool { return slices.Contains(SessionSignals, name) }

// Session is a running command in a box.
type Session interface {
	// Pid returns the process ID of the command in the box.
	Pid() int
	// Signal sends one of SessionSignals to the command and all its descendants.
	Signal(name string) error
	// Resize sets the size of the terminal, if the session has one.
	Resize(TerminalSize) error
	// Wait returns the command's result after all its output has been delivered. If ctx ends first, Wait kills the
	// command with its descendants and returns ctx's error. It must be called exactly once.
	Wait(ctx context.Context) (ExecResult, error)
}

// Snapshot is a snapshot in the API.
type Snapshot struct {
	ID, Name  string
	Box       policy.BoxID
	CreatedBy string // ID of the API key that created the box; "" for the operator's
	Size      int64  // bytes on disk
	Status    string // creating, ready or error
	Error     string // why Status is error
	CreatedAt time.Time
}

// SelfTestVerdict is the outcome of one probe of a self-test.
type SelfTestVerdict string

// The verdicts.
const (
	ProbeTight   SelfTestVerdict = "tight"   // refused as the policy promises, and logged
	ProbeHole    SelfTestVerdict = "hole"    // traffic got through, or the refusal was not the promised one
	ProbeNotRun  SelfTestVerdict = "not_run" // could not be run, so the result is unknown
	ProbeSkipped SelfTestVerdict = "skipped" // does not apply: the policy allows the target, or has no such rule
)

// SelfTestProbe is one line of the scorecard: one attack, tried over one address family.
type SelfTestProbe struct {
	Group    string
	Attack   string
	Family   string // "ipv4" or "ipv6"
	Target   string // an address, an address and port, or a name
	Expected string // the promise of the active policy
	Seen     string // observations of the box and entries of the log
	Verdict  SelfTestVerdict
	Why      string // for every verdict except ProbeTight
}

// SelfTestReport is a scorecard.
type SelfTestReport struct {
	Box      policy.BoxID
	Mode     policy.Mode // of the policy that was tested
	Version  uint64      // of that policy
	Started  time.Time
	Duration time.Duration
	Probes   []SelfTestProbe

	// Untestable is why the box cannot be tested from its network namespace; no probe was sent then. Empty if it was
	// tested.
	Untestable string
}

// SelfTestStatus is the result of a scorecard.
type SelfTestStatus string

// The statuses. Only SelfTestTight is a pass.
const (
	SelfTestTight      SelfTestStatus = "tight"
	SelfTestNotTight   SelfTestStatus = "not_tight"  // a probe found a hole, or a probe that could have found one was not run
	SelfTestUntestable SelfTestStatus = "untestable" // no probe was run
)

// Status returns the result of the scorecard.
func (r SelfTestReport) Status() SelfTestStatus {
	switch {
	case r.Untestable != "":
		return SelfTestUntestable
	case r.Tight():
		return SelfTestTight
	default:
		return SelfTestNotTight
	}
}

// Count returns the number of probes with the verdict.
func (r SelfTestReport) Count(v SelfTestVerdict) int {
	n := 0
	for _, p := range r.Probes {
		if p.Verdict == v {
			n++
		}
	}
	return n
}

// Tight reports whether every probe was run or did not apply, no probe found a hole, and at least one was run.
func (r SelfTestReport) Tight() bool {
	return r.Untestable == "" && r.Count(ProbeHole) == 0 && r.Count(ProbeNotRun) == 0 && r.Count(ProbeTight) > 0
}

// DiagnosisRequest asks why a host works, or does not, for a box.
type DiagnosisRequest struct {
	Host name.Name
	Port uint16
	Path string        // of the request, beginning with a slash
	Idle time.Duration // how long an idle connection is watched
}

// NamedPolicy is a policy with a name. Boxes can follow it, and a change applies to all its followers at the same time.
type NamedPolicy struct {
	Name     string
	Spec     policy.Spec
	Version  uint64 // only grows
	Boxes    []Box  // followers, oldest first
	Warnings []document.Problem
	Resource string // the BoxgatePolicy, NAMESPACE/NAME, that it belongs to; "": it is the operator's
	Fleet    bool   // it is one of the fleet, which its hosts share

	// Only set by the call that changed the policy:
	Was       policy.Spec // the replaced policy; the zero value for a new name
	Followers []Follower  // whose policies changed
}

// Follower is a box whose policy changed because it follows a named policy.
type Follower struct {
	Box     policy.BoxID
	Was, Is PolicyState
}

// LeaseEntry identifies a lease. A box has at most one lease per entry.
type LeaseEntry struct {
	Allow bool   // false: deny
	Audit bool   // with Allow and no Entry: the policy is audited
	Entry string // a domain or CIDR as in a policy
}

// The actions of leases.
const (
	ActionAllow = "allow"
	ActionDeny  = "deny"
	ActionAudit = "audit"
)

// Action returns the action of the lease.
func (l LeaseEntry) Action() string {
	switch {
	case l.Audit:
		return ActionAudit
	case l.Allow:
		return ActionAllow
	}
	return ActionDeny
}

// MaxAudit is the longest time for which a policy can be audited.
const MaxAudit = 24 * time.Hour

// Lease is a temporary policy entry.
type Lease struct {
	LeaseEntry
	StartedAt, ExpiresAt time.Time
	// Left is the remaining time, measured on the monotonic clock.
	Left time.Duration
	// Idle is why the lease has no effect next to the policy; only set by the call that made it.
	Idle string
}

// LeaseRequest asks for leases. A running lease for the same entry is replaced.
type LeaseRequest struct {
	Allow   bool
	Entries []string
	Lasts   time.Duration // more than 0
}

// SecretStatus is the state of a configured secret, without its value.
type SecretStatus struct {
	Name    string
	Source  string    // its kind and place, such as "file /etc/boxgate/openai.key"
	Valid   bool      // a usable value is cached, or the next use reads it
	Stale   bool      // expired without a use: the next use reads it
	Read    time.Time // last successful read of the source; zero: never
	Expires time.Time // expiry reported by the source, or zero
	Error   string    // why the last read failed; "" if it succeeded
}

// Capacity is the use of the gateway's bounded resources.
type Capacity struct {
	Listeners   []ListenerState // every listener that the gateway serves
	Places      []PlaceState    // resources shared by all boxes or by all visitors
	Descriptors PlaceState      // open files of the process
	Unremoved   []string        // interfaces of closed boxes that could not be removed from the kernel yet
	// MetricsExport is the state of the export of metrics; nil: it is off.
	MetricsExport *ExportState
	// SSHHostKey is the SHA-256 fingerprint of the host key of SSH; "": it is off.
	SSHHostKey string
}

// ExportState is the state of an export to a collector.
type ExportState struct {
	Succeeded time.Time // when the collector last accepted something; zero: never
	Error     string    // of the last attempt; empty: it succeeded, or has not begun
}

// ListenerState is the state of one listener.
type ListenerState struct {
	Name        string // such as "urls_https"; docs/metrics.md lists them
	Address     string
	Accepts     bool // whether it accepted a connection that the gateway made to it in the last few seconds
	Connections int  // accepted and still open
	Limit       int  // of Connections; 0: connections are limited per box or peer only
}

// PlaceState is the use of one bounded resource.
type PlaceState struct {
	Name  string
	Used  int
	Limit int // 0: no limit
}

// The kinds of error in answers of the gateway, each with its own status.
var (
	ErrNotFound     = errors.New("not found")                                            // 404
	ErrConflict     = errors.New("in conflict with the current state")                   // 409
	ErrPrecondition = errors.New("the version given in If-Match is not the current one") // 412
	ErrForbidden    = errors.New("not permitted by the configuration")                   // 403
	ErrLimit        = errors.New("a limit is reached")                                   // 429
	ErrFull         = errors.New("there is no room left")                                // 507
	ErrNotSupported = errors.New("not supported by this gateway")                        // 501
	ErrUnavailable  = errors.New("not available at the moment")                          // 503
)

// Sentences of [ErrUnavailable] errors of calls that have made something, or may have. In a fleet such a call is not made again on another host, which
// knows the call's outcome by the sentence: E2B's dialect shows nothing else.
const (
	NotRecorded = "the request was carried out, but its outcome could not be written to the audit trail"
	Continues   = "its creation continues"
	Remains     = "its remains must be deleted"
)

// ErrNotStarted is the [ErrUnavailable] of a command that cannot be started, such as a program that does not exist.
var ErrNotStarted = fmt.Errorf("the command cannot be started: %w", ErrUnavailable)

// Error is an error with a message for the caller of the API. Kind is one of the Err values of this package.
type Error struct {
	Kind    error
	Message string
	Cause   error // for the log; never shown
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Cause} }

// Errorf makes an [Error] of the given kind. If args contain an error formatted with %w, it becomes the cause. Its text
// is part of the message, so format only errors that the caller may see.
func Errorf(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Cause: errors.Unwrap(err)}
}
