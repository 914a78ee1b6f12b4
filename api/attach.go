package api

import "boxgate/policy"

// The kinds of an attached sandbox.
const (
	AttachNetNS  = "netns"  // the path of a network namespace
	AttachPID    = "pid"    // a process in that namespace
	AttachDocker = "docker" // a Docker container
)

// Which network stack the interface of an attached box belongs to.
const (
	StackHost  = "host"  // that of the namespace
	StackGuest = "guest" // that of the sandbox: the gateway sets the interface up once and then leaves it alone
)

// Attached identifies the sandbox that was attached, as its caller named it.
type Attached struct {
	Kind  string `json:"kind" enum:"netns pid docker"` // one of the constants
	Ref   string `json:"ref"`
	Stack string `json:"stack" enum:"host guest"` // one of the constants
	PID   int    `json:"-"`                       // Ref as a number, for AttachPID
	// Container is the ID of the Docker container that Ref named when it was attached.
	Container string `json:"container_id,omitempty" doc:"ID of the Docker container; used to find the container again after a restart"`
}

// AttachRequest is a request to attach, validated as a [CreateRequest] is.
type AttachRequest struct {
	Attached
	Name    string // may be empty
	Labels  []string
	Source  policy.Source // as in [Box]
	Limits  BoxLimits     // likewise
	Policy  policy.Spec
	Named   string // as in [CreateRequest]
	Headers []policy.HeaderRule

	LimitChange LimitChange // as in [CreateRequest]
}
