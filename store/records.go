package store

import (
	"encoding/json"
	"net/netip"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Box is the record of one sandbox. [DB.AllocateBox] assigns the index and the addresses, which never change.
type Box struct {
	ID           policy.BoxID  `json:"id"`
	Name         string        `json:"name,omitempty"` // unique among the boxes; may be ""
	Index        uint32        `json:"index"`          // position in the pools and the ID ranges; the lowest that was free
	V4           netip.Addr    `json:"v4,omitzero"`
	V6           netip.Addr    `json:"v6,omitzero"`
	State        string        `json:"state"`
	Error        string        `json:"error,omitempty"`    // why State is "error"
	Promised     bool          `json:"promised,omitempty"` // its ID was returned to the caller before it was created
	Image        string        `json:"image,omitempty"`
	Layers       []string      `json:"layers,omitempty"` // of the snapshot that it was created from, over the image, the lowest first
	Runtime      string        `json:"runtime,omitempty"`
	Size         string        `json:"size,omitempty"`
	Labels       []string      `json:"labels,omitempty"`
	KeepAlive    bool          `json:"keep_alive,omitempty"`
	InitCommand  string        `json:"init_command,omitempty"`
	Ephemeral    bool          `json:"ephemeral,omitempty"`
	Attached     *Attached     `json:"attached,omitempty"` // set: the box was attached, not launched
	CreatedAt    time.Time     `json:"created_at"`
	UpdatedAt    time.Time     `json:"updated_at,omitzero"`
	LastActivity time.Time     `json:"last_activity,omitzero"`
	ExpiresAt    time.Time     `json:"expires_at,omitzero"`  // zero: never
	CreatedBy    string        `json:"created_by,omitempty"` // ID of the API key; "" for the operator's
	Source       policy.Source `json:"source,omitzero"`      // source address of its connections
	Limits       BoxLimits     `json:"limits,omitzero"`      // its own limits
	CPU          time.Duration `json:"cpu_ns,omitempty"`     // CPU time used so far

	// Extra has the fields of the hosted product, stored and returned unchanged. It is sealed, because programs put
	// tokens there.
	Extra json.RawMessage `json:"-"`
	// Env is the environment of the box, sealed.
	Env map[string]name.Secret `json:"-"`
	// Secrets are the other secrets of the box by the name its owner gave them, sealed.
	Secrets map[string]name.Secret `json:"-"`
	// PlaceholderKey is the key from which the tokens of the box's placeholders are derived, sealed; empty in boxes of
	// older versions.
	PlaceholderKey name.Secret `json:"-"`
}

// BoxLimits are the limits of one box that differ from the configured ones: those set by the operator, and those set by
// others, which apply where they are lower.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`
}

// Attached describes the attached sandbox if the gateway did not launch the box itself.
type Attached struct {
	Kind string `json:"kind"` // interface, netns, pid or docker
	Ref  string `json:"ref"`
	// Container is the ID of a Docker container, whichever way Ref names it.
	Container string `json:"container,omitempty"`
	// Stack is guest if the sandbox's own network stack uses the interface; else host, or empty in boxes of older
	// versions.
	Stack string `json:"stack,omitempty"`
	// Search is the search list of its resolver when it was attached.
	Search []string `json:"search,omitempty"`
}

// Pools are the pools from which [DB.AllocateBox] assigns addresses. A family with an invalid prefix gets no addresses.
type Pools struct {
	V4, V6 netip.Prefix
	// Reserved is the number of addresses kept free at the beginning of each pool, including the network address. The
	// box with index i gets address Reserved+i.
	Reserved uint32
	// Max bounds the number of boxes; 0: the size of the pools, at most 65536.
	Max uint32
}

// Policy is the policy of a box as written, with its temporary entries; or a named policy, which has neither leases nor
// Named.
type Policy struct {
	Spec    policy.Spec `json:"spec"`
	Version uint64      `json:"version"`
	Leases  []Lease     `json:"leases,omitempty"`
	// Named is the named policy that the box follows; may be "". Spec is a copy of its spec: both change in one
	// transaction.
	Named string `json:"named,omitempty"`
}

// Lease is a temporary entry of a policy.
type Lease struct {
	Allow     bool      `json:"allow"` // else it denies
	Entry     string    `json:"entry"` // a domain or CIDR as in a policy
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Key       string    `json:"key,omitempty"` // ID of the API key that made it; "" if an older version did
	// Boot identifies the boot of the host to which BootEnd refers: the time since that boot at which the lease ends.
	Boot    string        `json:"boot,omitempty"`
	BootEnd time.Duration `json:"boot_end_ns,omitempty"`
}

// Headers are the header rules of a box, or the global ones.
type Headers struct {
	Rules   []policy.HeaderRule
	Version uint64 // 0: never set
}

// CA is a certificate authority: one of a box, or the installation's own.
type CA struct {
	CertPEM []byte
	KeyPEM  name.Secret
}

// URL is the public URL of one port of a box. Credentials are stored only as hashes ([HashKey]); a nil hash means that
// there is no such credential. Without any credential, the URL is open to everyone.
type URL struct {
	Box       policy.BoxID `json:"box"`
	Port      uint16       `json:"port"`
	Bearer    *KeyHash     `json:"bearer,omitempty"`
	Username  string       `json:"username,omitempty"`
	Password  *KeyHash     `json:"password,omitempty"`
	Hostnames []string     `json:"hostnames,omitempty"` // canonical; unique among URLs
	Protocol  string       `json:"protocol,omitempty"`  // of the application; "" is auto
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	Owner     string       `json:"owner,omitempty"`     // ID of the API key that made it; "" for the operator's, and in URLs of older versions
	Pending   []string     `json:"pending,omitempty"`   // like Hostnames, but control is not proven yet; other URLs may have them

	// Origins are the origins whose pages may use the browser's session for this URL, in the form that browsers send.
	Origins []string `json:"origins,omitempty"`
	// Accounts are the accounts at the identity provider that may visit; nil: no account.
	Accounts *Accounts `json:"accounts,omitempty"`
	// SignedOut are the sessions that were ended early.
	SignedOut []SignedOut `json:"signed_out,omitempty"`
	// SignedOutBefore is set if all sessions that began earlier were ended too.
	SignedOutBefore time.Time `json:"signed_out_before,omitzero"`
	// Key authenticates the sessions and links of this URL, sealed; empty in URLs of older versions.
	Key name.Secret `json:"-"`
}

// Accounts lists the accounts at the identity provider that may visit a public URL.
type Accounts struct {
	Emails  []string `json:"emails,omitempty"`
	Domains []string `json:"domains,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// SignedOut is a session of a public URL that was ended early.
type SignedOut struct {
	Session string    `json:"session"` // its ID
	Until   time.Time `json:"until"`   // its regular end
}

// OperatorKey is the ID of the key in the file api-key, also after it has been replaced.
const OperatorKey = "operator"

// RoleAdmin is the role with all permissions. The store does not interpret any other role.
const RoleAdmin = "admin"

// APIKey is a key of the admin API. The key itself is not stored.
type APIKey struct {
	// ID stays the same when the key is replaced, and is never reused. Two records with the same ID are a key and its
	// predecessor within its grace.
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	// Role determines the permissions of the key; "" has no permissions.
	Role      string       `json:"role,omitempty"`
	Box       policy.BoxID `json:"box,omitempty"` // the only box that the key is for; "" for no such limit
	Hash      KeyHash      `json:"hash"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	LastUsed  time.Time    `json:"last_used,omitzero"`  // to the minute; zero: never
	// Quotas are its own quotas, by name. Records with the same ID have the same quotas.
	Quotas map[string]int64 `json:"quotas,omitempty"`
}

// isOperators reports whether a record is that of the operator's key. It is stored without ID and role, as all keys were
// before named ones existed, so that older versions still understand a store without named keys.
func (k APIKey) isOperators() bool { return k.ID == "" && k.Role == "" }

// validAt reports whether the key is valid at that time.
func (k APIKey) validAt(now time.Time) bool { return k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt) }
