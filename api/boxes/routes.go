package boxes

import (
	"context"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host creates, attaches and deletes boxes. Errors are as in package api.
type Host interface {
	// CreateBox returns once the box can run commands, or earlier with StatusCreating; clients poll then. A name already
	// in use is an ErrConflict; an unsupported runtime or field is a *document.InvalidError.
	CreateBox(ctx context.Context, req api.CreateRequest) (api.Box, error)
	// AttachBox attaches an existing network namespace to the gateway and returns once its policy is active. A namespace
	// that cannot be found or used is a *document.InvalidError.
	AttachBox(ctx context.Context, req api.AttachRequest) (api.Box, error)
	// ReattachBox attaches a box to its sandbox again, or to the sandbox to if it is not nil, and returns once its policy
	// is active there. A sandbox that cannot be found or used is a *document.InvalidError; a launched box is an
	// ErrConflict.
	ReattachBox(ctx context.Context, id policy.BoxID, to *api.Attached) (api.Box, error)
	// DetachBox disconnects an attached box and deletes its state. A launched box is an ErrConflict.
	DetachBox(ctx context.Context, id policy.BoxID) error
	// DeleteBox stops the box, cuts its connections and deletes its state.
	DeleteBox(ctx context.Context, id policy.BoxID) error
}

// Table finds and lists the boxes.
type Table interface {
	rest.Finder
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f api.BoxFilter) ([]api.Box, error)
	// HostLimits returns the configured limits of every box.
	HostLimits() policy.Limits
}

// Snapshots gives access to the snapshots of boxes.
type Snapshots interface {
	// Snapshots lists the snapshots of a box, or of all boxes for "".
	Snapshots(ctx context.Context, box policy.BoxID) ([]api.Snapshot, error)
}

// SelfTests runs self-tests of boxes.
type SelfTests interface {
	// SelfTest runs attacks of a hostile program inside the box. A hole is reported, but is not an error. If
	// another self-test is already running, the error is an ErrConflict.
	SelfTest(ctx context.Context, id policy.BoxID) (api.SelfTestReport, error)
}

// Endpoints serves the boxes.
type Endpoints struct {
	Boxes     Table
	Host      Host
	Snapshots Snapshots
	SelfTests SelfTests
	History   *history.History
	Bodies    strict.Bodies
	// HasSecret reports whether header rules may refer to a secret.
	HasSecret func(name string) bool
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box", ID: "createBox", Summary: "Create a box", Status: 201, Request: reflect.TypeFor[createBody](),
			Example:  `{"name":"web-1","size":"small","labels":["beta"],"env_vars":{"STAGE":"test"},"network_policy":{"mode":"custom","allowed_domains":["api.example.com"]},"attach_headers":{"api.example.com":{"Authorization":"Bearer TOKEN"}}}`,
			Response: reflect.TypeFor[boxView](), Handle: e.createBox},
		{Method: "POST", Path: "/v2/box/from-snapshot", ID: "createBoxFromSnapshot", Summary: "Create a box with the files of a snapshot; missing fields are taken from the snapshot", Status: 201,
			Request: reflect.TypeFor[fromSnapshotBody](), Example: `{"snapshot_id":"snap_0123456789abcdef","name":"second","env_vars":{"LOG_LEVEL":"debug"}}`,
			Response: reflect.TypeFor[boxView](), Handle: e.createFromSnapshot},
		{Method: "POST", Path: "/v2/box/attach", ID: "attachBox", Summary: "Attach an existing network namespace, process or container", Status: 201, Request: reflect.TypeFor[attachBody](), Example: `{"netns":"/run/netns/agent-1","network_policy":{"mode":"deny-all"}}`, Response: reflect.TypeFor[boxView](), Handle: e.attachBox},
		{Method: "POST", Path: "/v2/box/{id}/reattach", ID: "reattachBox", Summary: "Attach a box to its sandbox again, or to another one; its policy, rules, URLs and CA stay", Request: reflect.TypeFor[sandboxBody](), Example: `{"container":"agent-1"}`, Response: reflect.TypeFor[boxView](), Handle: e.reattachBox},
		{Method: "POST", Path: "/v2/box/{id}/detach", ID: "detachBox", Summary: "Disconnect an attached box and delete it", Response: reflect.TypeFor[deletedView](), Handle: e.detachBox},
		{Method: "GET", Path: "/v2/box", ID: "listBoxes", Summary: "List the boxes", Query: reflect.TypeFor[listQuery](), Response: reflect.TypeFor[[]boxView](), Handle: e.listBoxes},
		{Method: "DELETE", Path: "/v2/box", ID: "deleteBoxes", Summary: "Delete several boxes; with an unknown one, no box is deleted", Request: reflect.TypeFor[deleteBody](), Example: `{"ids":["web-1","web-2"]}`, Response: reflect.TypeFor[deletedView](), Handle: e.deleteBoxes},
		{Method: "GET", Path: "/v2/box/{id}", ID: "getBox", Summary: "One box, by ID or name", Response: reflect.TypeFor[boxView](), Handle: e.getBox},
		{Method: "DELETE", Path: "/v2/box/{id}", ID: "deleteBox", Summary: "Delete a box", Response: reflect.TypeFor[deletedView](), Handle: e.deleteBox},
		{Method: "GET", Path: "/v2/box/{id}/status", ID: "getBoxStatus", Summary: "The state of a box", Response: reflect.TypeFor[statusView](), Handle: e.getStatus},
		{Method: "POST", Path: "/v2/box/{id}/selftest", ID: "testBox", Summary: "Attack the gateway from inside the box; returns a scorecard after a few seconds", Response: reflect.TypeFor[selfTestView](), Handle: e.selfTest},
	}
}
