package api

import (
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// ApprovalState is the state of a box's request for access.
type ApprovalState string

// The states.
const (
	ApprovalOpen   ApprovalState = "open"
	ApprovalOnce   ApprovalState = "once"   // approved for a time
	ApprovalAlways ApprovalState = "always" // approved by a change of the policy
	ApprovalDenied ApprovalState = "denied"
)

// ApprovalNeedsHuman is the answer of a reviewer that leaves a request to a person: it stays open.
const ApprovalNeedsHuman = "needs_human"

// Enum lists the states for the description of the API.
func (ApprovalState) Enum() []string {
	return []string{string(ApprovalOpen), string(ApprovalOnce), string(ApprovalAlways), string(ApprovalDenied)}
}

// Approval is a request of a box for access to a destination that its policy denies, and the answer to it.
type Approval struct {
	ID        string
	Box       policy.BoxID
	Host      string // a name, or an address
	Port      uint16 // 0 with an address
	Method    string // of requests; "" for the destination itself
	Path      string // with Method; a prefix if it ends with a star
	Entry     string // the entry of a policy that allows it
	Reason    string // text of the box
	Lasts     time.Duration
	State     ApprovalState
	Answer    string // reason of the answer
	Key, By   string // ID and name of the API key that answered
	Human     string // why a reviewer left it to a person
	Until     time.Time
	Version   uint64 // of the policy with the approved access
	CreatedAt time.Time
	ExpiresAt time.Time
	ClosedAt  time.Time // zero: open
	// Candidate is the effect of an approval under the current policy. nil: the request is not open, or Obstacle says why it
	// cannot be approved now.
	Candidate *Candidate
	Obstacle  string
	Barred    string // why the caller may not answer an open request; "" if the gateway does not require another key
}

// Candidate is the effect that an approval of a request would have under the current policy of its box.
type Candidate struct {
	// Digest identifies the box, the destination and the effect: it changes if the policy changes so that the effect differs.
	Digest string `json:"digest"`
	// Opens describes the access.
	Opens string `json:"opens"`
	// Denied is the current decision about the destination.
	Denied name.Reason `json:"denied"`
	// Before is the request rule that the approval precedes, if it is for requests.
	Before string `json:"before,omitempty"`
	// Mode is the mode of the policy.
	Mode policy.Mode `json:"mode"`
	// Headers are the patterns of header rules that cover the destination: the gateway adds credentials to requests there.
	Headers []string `json:"headers,omitempty"`
	// Rules is the number of request rules for hosts that include the destination; they continue to apply.
	Rules int `json:"rules,omitempty"`
	// Judged reports whether the operator's ceiling has request rules for the host, so that it limits requests and not only destinations.
	Judged bool `json:"-"`
	// NotAlways is the reason why it can be approved only for a time; "" if it can be approved for good.
	NotAlways string `json:"not_always,omitempty"`
}

// ApprovalAnswer is an answer to a request for access.
type ApprovalAnswer struct {
	Answer string        // a state other than open, or [ApprovalNeedsHuman]
	Lasts  time.Duration // with ApprovalOnce
	Reason string
	Digest string // of the candidate that was approved
}

// Destination is what a box may be given access to.
type Destination struct {
	Host   string // a name, or an address
	Port   uint16 // 0 for an address
	Method string // with a name: only requests with the method and the path, which a request rule denies; "": the destination itself
	Path   string // a prefix if it ends with a star
}

// Grant is approved access to a destination.
type Grant struct {
	Destination
	Digest string        // of the candidate
	Lasts  time.Duration // 0: for good
}

// ApprovalRequest is a request for access as a box makes it.
type ApprovalRequest struct {
	Destination               // without a port: port 443 of a name
	Lasts       time.Duration // 0: the default
	Reason      string
}
