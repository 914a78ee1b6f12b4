package harness

import (
	"context"
	"io"
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Webhooks sends requests on behalf of boxes.
type Webhooks interface {
	// WebhookClient returns a client whose requests are checked and logged as traffic of the box. It follows no redirects.
	WebhookClient(box policy.BoxID) (*http.Client, error)
}

// Commands runs commands in boxes.
type Commands interface {
	// Exec runs a command to its end and copies its output as it arrives. The two writers are safe for concurrent use and
	// block only while the API's client does. After a writer has failed, the rest of its stream is discarded, at a
	// limited rate per box. If ctx ends, the command is killed and ctx's error returned. A command that ran is not an
	// error, whatever its exit code.
	Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error)
}

// Endpoints serves runs of agents.
type Endpoints struct {
	Boxes    rest.Finder
	Commands Commands
	Webhooks Webhooks
	History  *history.History
	Bodies   strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/run", ID: "runAgent", Summary: "Run the custom harness of a box to its end, or in the background with a webhook; refused for a box without a harness, since this gateway has no built-in agents", Request: reflect.TypeFor[runBody](), Example: `{"prompt":"Fix the failing test"}`, Response: reflect.TypeFor[agentView](), Handle: e.run},
		{Method: "POST", Path: "/v2/box/{id}/run/stream", ID: "streamAgent", Summary: "Run the custom harness of a box and stream its events; refused for a box without a harness, since this gateway has no built-in agents",
			Request: reflect.TypeFor[runBody](), Example: `{"prompt":"Fix the failing test"}`, Produces: []string{stream.EventStream}, Items: []reflect.Type{reflect.TypeFor[runStart](), reflect.TypeFor[doneData](), reflect.TypeFor[errorData](), reflect.TypeFor[statsData]()}, Handle: e.stream},
	}
}
