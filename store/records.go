package store

import (
	"encoding/json"
	"net/netip"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Box is the record of one sandbox. Index and the addresses are assigned by [DB.AllocateBox] and never change.
type Box struct {
	ID           policy.BoxID  `json:"id"`
	Name         string        `json:"name,omitempty"` // unique among the boxes; "" for none
	Index        uint32        `json:"index"`          // the lowest that was free: the position in the pools and the ID ranges
	V4           netip.Addr    `json:"v4,omitzero"`
	V6           netip.Addr    `json:"v6,omitzero"`
	State        string        `json:"state"`
	Error        string        `json:"error,omitempty"`    // why State is "error"
	Promised     bool          `json:"promised,omitempty"` // its caller was told of it before it was made
	Image        string        `json:"image,omitempty"`
	Layers       []string      `json:"layers,omitempty"` // of the snapshot that it was made from, over the image, the lowest first
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
	Source       policy.Source `json:"source,omitzero"`      // from where its connections leave
	Limits       BoxLimits     `json:"limits,omitzero"`      // of its own
	CPU          time.Duration `json:"cpu_ns,omitempty"`     // CPU time used so far

	// Extra has the fields of the hosted product, stored and read back. It is sealed, because programs put tokens
	// there.
	Extra json.RawMessage `json:"-"`
	// Env is the environment of the box, sealed.
	Env map[string]name.Secret `json:"-"`
	// Secrets are the other secrets of the box by the name its owner gave them, sealed.
	Secrets map[string]name.Secret `json:"-"`
	// PlaceholderKey is the key from which the tokens of the box's placeholders are derived, sealed; empty in boxes of
	// older versions.
	PlaceholderKey name.Secret `json:"-"`
}

// BoxLimits are the limits of one box that differ from those of the configuration: those that the operator has set, and those that
// others have set, which count where they allow less.
type BoxLimits struct {
	Operator policy.Limits `json:"operator,omitzero"`
	Own      policy.Limits `json:"own,omitzero"`
}

// Attached says what was attached if the gateway did not launch the box itself.
type Attached struct {
	Kind string `json:"kind"` // interface, netns, pid or docker
	Ref  string `json:"ref"`
	// Container is the ID of a Docker container, whatever it was named by.
	Container string `json:"container,omitempty"`
	// Stack is guest if the sandbox's own network stack uses the interface; else host, or empty in boxes of older
	// versions.
	Stack string `json:"stack,omitempty"`
	// Search is the search list of its resolver when it was attached.
	Search []string `json:"search,omitempty"`
}

// Pools are the pools from which [DB.AllocateBox] assigns addresses. A family whose prefix is not valid gets none.
type Pools struct {
	V4, V6 netip.Prefix
	// Reserved is the number of addresses kept free at the beginning of each pool, the network address included. The box
	// with index i gets the address at place Reserved+i.
	Reserved uint32
	// Max bounds the number of boxes; 0: as many as the pools hold, and at most 65536.
	Max uint32
}

// Policy is the policy of a box as written, and what it allows or denies for a time besides; or a named one, which has neither
// leases nor a name to follow.
type Policy struct {
	Spec    policy.Spec `json:"spec"`
	Version uint64      `json:"version"`
	Leases  []Lease     `json:"leases,omitempty"`
	// Named is the named policy that the box follows; "": none. Spec is what that says: both change in one transaction.
	Named string `json:"named,omitempty"`
}

// Lease is a temporary entry of a policy.
type Lease struct {
	Allow     bool      `json:"allow"` // else it denies
	Entry     string    `json:"entry"` // a domain or CIDR as in a policy
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Key       string    `json:"key,omitempty"` // ID of the API key that made it; "": an older version did
	// Boot is the boot of the host in which BootEnd counts: the time since then at which the lease ends.
	Boot    string        `json:"boot,omitempty"`
	BootEnd time.Duration `json:"boot_end_ns,omitempty"`
}

// Headers are the header rules of a box, or the global ones.
type Headers struct {
	Rules   []policy.HeaderRule
	Version uint64 // 0: none were ever set
}

// CA is a certificate authority: one of a box, or the installation's own.
type CA struct {
	CertPEM []byte
	KeyPEM  name.Secret
}

// URL is the public URL of one port of a box. Credentials are only stored as hashes ([HashKey]); a nil hash means that
// there is no such credential. With neither, the URL is open to everybody.
type URL struct {
	Box       policy.BoxID `json:"box"`
	Port      uint16       `json:"port"`
	Bearer    *KeyHash     `json:"bearer,omitempty"`
	Username  string       `json:"username,omitempty"`
	Password  *KeyHash     `json:"password,omitempty"`
	Hostnames []string     `json:"hostnames,omitempty"` // canonical; no other URL has them
	Protocol  string       `json:"protocol,omitempty"`  // what the application speaks; "" is auto
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	Owner     string       `json:"owner,omitempty"`     // ID of the API key that made it; "" for the operator's, and in URLs of older versions
	Pending   []string     `json:"pending,omitempty"`   // like Hostnames, but it is not shown yet that they are the owner's; other URLs may have them

	// Origins are those whose pages may use what browsers keep for this URL, as browsers write them.
	Origins []string `json:"origins,omitempty"`
	// Accounts says whose accounts at the identity provider it lets in; nil: nobody's.
	Accounts *Accounts `json:"accounts,omitempty"`
	// SignedOut are the sessions that were ended before their time.
	SignedOut []SignedOut `json:"signed_out,omitempty"`
	// SignedOutBefore: all sessions that began earlier were ended as well.
	SignedOutBefore time.Time `json:"signed_out_before,omitzero"`
	// Key authenticates the sessions and links of this URL, sealed; empty in URLs of older versions.
	Key name.Secret `json:"-"`
}

// Accounts says whose accounts at the identity provider a public URL lets in.
type Accounts struct {
	Emails  []string `json:"emails,omitempty"`
	Domains []string `json:"domains,omitempty"`
	Groups  []string `json:"groups,omitempty"`
}

// SignedOut is a session of a public URL that was ended before its time.
type SignedOut struct {
	Session string    `json:"session"` // its ID
	Until   time.Time `json:"until"`   // when it would have ended
}

// OperatorKey is the ID of the key in the file api-key, also when it has been replaced.
const OperatorKey = "operator"

// RoleAdmin is the role that may do everything. The store knows no other: what they may do is not its business.
const RoleAdmin = "admin"

// APIKey is a key of the admin API. The key itself is not stored.
type APIKey struct {
	// ID stays the same when the key is replaced, and is never given to another key. Two records with one ID are a key and
	// the one that it replaced, within its grace.
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	// Role says what the key may do; "" is no role, with which it may do nothing.
	Role      string       `json:"role,omitempty"`
	Box       policy.BoxID `json:"box,omitempty"` // the only one that the key is for; "" if it is for others
	Hash      KeyHash      `json:"hash"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	LastUsed  time.Time    `json:"last_used,omitzero"`  // to the minute; zero: not yet
	// Quotas are those of its own, by name. Two records with one ID have the same.
	Quotas map[string]int64 `json:"quotas,omitempty"`
}

// operators reports whether a record is that of the operator's key, which has neither an ID nor a role in the store: it is
// written as all keys were before there were others, so that a store without others is still understood by older versions.
func (k APIKey) operators() bool { return k.ID == "" && k.Role == "" }

// opens reports whether the key is valid at that time.
func (k APIKey) opens(now time.Time) bool { return k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt) }
