package api

import (
	"context"
	"os/user"
	"strconv"
	"time"

	"boxgate/llm"
	"boxgate/policy"
	"boxgate/quota"
)

// Role is the set of permissions of an API key. The zero value permits no call.
type Role string

// The roles. The table in package access lists their permissions.
const (
	RoleAdmin   Role = "admin"       // everything
	RoleCreator Role = "box-creator" // creates boxes, and has full access to those it created
	RoleReader  Role = "read-only"   // sees all boxes, their rules and their activity; no secret, no file, no command
	RoleBox     Role = "one-box"     // has full access to one box and sees no other
	RoleAuditor Role = "auditor"     // reads the records about all boxes: decisions, audit trail, reports; nothing else
	// RoleApprover sees the requests of all boxes for access, and answers them; it may call no other endpoint.
	RoleApprover Role = "approver"
)

// Roles lists the roles that a key can have.
var Roles = []Role{RoleAdmin, RoleCreator, RoleReader, RoleBox, RoleAuditor, RoleApprover}

// KeyHeader is the request header with the API key. A bearer token works as well.
const KeyHeader = "X-Box-Api-Key"

// OperatorKey is the ID of the key that the gateway makes for commands on its own host.
const OperatorKey = "operator"

// Caller is the API key of a request. The zero value has no permissions and sees no box.
type Caller struct {
	Key  string // ID of the key
	Name string
	Role Role
	Box  policy.BoxID // the one box of RoleBox

	Fleet bool // a key of the fleet, which a host that is cut off from the fleet refuses
}

// Holder returns the account that quotas are charged to. All admin keys, including [OperatorKey], share that of the
// operator.
func (c Caller) Holder() quota.Holder {
	return quota.Holder{Type: quota.APIKey, ID: c.Key, Name: c.Name, Operator: c.Role == RoleAdmin}
}

// Sees reports whether the key may see a box.
func (c Caller) Sees(b Box) bool {
	switch c.Role {
	case RoleAdmin, RoleReader, RoleAuditor, RoleApprover:
		return true
	case RoleCreator:
		return c.Key != "" && b.CreatedBy == c.Key
	case RoleBox:
		return c.Box != "" && b.ID == c.Box
	}
	return false
}

// SeesSnapshot reports whether the key may see a snapshot, even after its box was deleted.
func (c Caller) SeesSnapshot(s Snapshot) bool {
	return c.Sees(Box{ID: s.Box, CreatedBy: s.CreatedBy})
}

// Peer is the user at the other end of a Unix socket.
type Peer struct {
	UID   int
	Login int  // of root: the user who logged in on the host and became root, as by sudo; 0: unknown
	Admin bool // needs no key, by admin.group of the configuration
}

// String returns the ID and the name of the user, and of the user who logged in.
func (p Peer) String() string {
	text := userText(p.UID)
	if p.Login != 0 && p.Login != p.UID {
		text += ", login of " + userText(p.Login)
	}
	return text
}

// userText returns the ID and the name of a user of the host.
func userText(id int) string {
	uid := strconv.Itoa(id)
	if u, err := user.LookupId(uid); err == nil {
		return "uid " + uid + " (" + u.Username + ")"
	}
	return "uid " + uid
}

// callerKey is the context key of the caller.
type callerKey struct{}

// WithCaller returns a context that carries the key of a request.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the key of a request, or the zero value if the request had none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Call describes a request that changes something, for histories. The zero value is no request.
type Call struct {
	Remote string // address of the caller, or "unix" and the user at the other end of the socket
	Route  string // method and path, with names of parameters instead of values
}

// callKey is the context key of the call.
type callKey struct{}

// WithCall returns a context that carries the description of a request.
func WithCall(ctx context.Context, c Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the description of a request, or the zero value.
func CallOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// Key is an API key without its secret.
type Key struct {
	Caller
	CreatedAt time.Time
	ExpiresAt time.Time    // zero: never
	LastUsed  time.Time    // to the minute; zero: never
	Quotas    quota.Limits // set for this key
	Uses      quota.Uses   // usage and limit of each quota; set in lists only

	SSHKeys []SSHKey // public keys that log in with its permissions

	Model      llm.Limit  // of models, set for this key
	ModelUsage ModelUsage // by the boxes that it has made; set in lists only
}

// KeyRequest describes an API key to make.
type KeyRequest struct {
	Name      string
	Role      Role
	Box       policy.BoxID  // only with RoleBox
	ExpiresIn time.Duration // 0: never
	Quotas    quota.Limits  // override the configured quotas; 0: not overridden
	Model     llm.Limit     // likewise, of models
}

// SSHKey is a public key that logs in to boxes over SSH with the permissions of an API key.
type SSHKey struct {
	ID      string // derived from its SHA-256
	Key     []byte // in the wire format of RFC 4253, section 6.6
	Name    string
	AddedAt time.Time
}
