package api

import (
	"context"
	"time"

	"boxgate/policy"
	"boxgate/quota"
)

// Role says what an API key may do. The zero value may do nothing.
type Role string

// The roles. What each may do is the table of package access.
const (
	RoleAdmin   Role = "admin"       // everything
	RoleCreator Role = "box-creator" // creates boxes, and does everything with those that it has created
	RoleReader  Role = "read-only"   // sees all boxes, their rules and what they do; no secret, no file, no command
	RoleBox     Role = "one-box"     // does everything with one box, and knows of no other
)

// Roles lists the roles that keys can have.
var Roles = []Role{RoleAdmin, RoleCreator, RoleReader, RoleBox}

// KeyHeader is the field of a request that has the API key. A bearer token serves as well.
const KeyHeader = "X-Box-Api-Key"

// OperatorKey is the ID of the key that the gateway itself makes, for the commands on its host.
const OperatorKey = "operator"

// Caller is the API key that a request came with. The zero value may do nothing and sees no box.
type Caller struct {
	Key  string // its ID
	Name string
	Role Role
	Box  policy.BoxID // with RoleBox: the box
}

// Holder is the key in the books of quotas. Admin keys, the operator's among them, are the operator there.
func (c Caller) Holder() quota.Holder {
	return quota.Holder{What: quota.APIKey, ID: c.Key, Name: c.Name, Operator: c.Role == RoleAdmin}
}

// Sees reports whether the key may know of a box.
func (c Caller) Sees(b Box) bool {
	switch c.Role {
	case RoleAdmin, RoleReader:
		return true
	case RoleCreator:
		return c.Key != "" && b.CreatedBy == c.Key
	case RoleBox:
		return c.Box != "" && b.ID == c.Box
	}
	return false
}

// SeesSnapshot reports whether the key may know of a snapshot, also when its box is gone.
func (c Caller) SeesSnapshot(s Snapshot) bool {
	return c.Sees(Box{ID: s.Box, CreatedBy: s.CreatedBy})
}

// callerKey is where a context has the caller.
type callerKey struct{}

// WithCaller returns a context of a request that came with a key.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the key that a request came with; the zero value if it came with none.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// Key is an API key as it can be shown. The key itself cannot.
type Key struct {
	Caller
	CreatedAt time.Time
	ExpiresAt time.Time    // zero: never
	LastUsed  time.Time    // to the minute; zero: not yet
	Quotas    quota.Limits // of its own
	Uses      quota.Uses   // usage and limit of each quota; set in lists only
}

// KeyRequest describes an API key to make.
type KeyRequest struct {
	Name      string
	Role      Role
	Box       policy.BoxID  // with RoleBox alone
	ExpiresIn time.Duration // 0: never
	Quotas    quota.Limits  // that override the configured ones; 0: not overridden
}
