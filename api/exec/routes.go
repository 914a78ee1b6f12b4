package exec

import (
	"context"
	"io"
	"reflect"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host runs commands in boxes.
type Host interface {
	// Exec runs a command to its end and copies its output as it arrives. The two writers are safe for concurrent use and
	// block only while the API's client does. After a writer has failed, the rest of its stream is discarded, at a
	// limited rate per box. If ctx ends, the command is killed and ctx's error returned. A command that ran is not an
	// error, whatever its exit code.
	Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error)
}

// Events gives access to decisions about the traffic of boxes.
type Events interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
}

// Endpoints serves commands in boxes.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	Events  Events
	History *history.History
	Bodies  strict.Bodies
	// MaxOutput is the maximum number of bytes of each output stream in the response of exec.
	MaxOutput int
	// Output bounds the memory of all responses of exec and code together.
	Output *capture.Budget
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/exec", ID: "runCommand", Summary: "Run a command and answer with its output", Request: reflect.TypeFor[execBody](), Example: `{"command":["sh","-c","echo hello"],"timeout":30000}`, Response: reflect.TypeFor[execView](), Handle: e.buffered(e.readCommand)},
		{Method: "POST", Path: "/v2/box/{id}/exec-stream", ID: "streamCommand", Summary: "Run a command and stream its output, then an exit event; with Accept: application/x-ndjson, in frames that separate the streams",
			Request: reflect.TypeFor[execBody](), Example: `{"command":["sh","-c","echo hello"],"timeout":30000}`, Produces: []string{"text/plain", stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[stream.Frame]()}, Handle: e.streamed(e.readCommand)},
		{Method: "POST", Path: "/v2/box/{id}/code", ID: "runCode", Summary: "Run source text and answer with its output", Request: reflect.TypeFor[codeBody](), Example: `{"code":"console.log(1 + 2)","language":"js"}`, Response: reflect.TypeFor[execView](), Handle: e.buffered(e.readCode)},
		{Method: "POST", Path: "/v2/box/{id}/code-stream", ID: "streamCode", Summary: "Run source text and stream its output as exec-stream does",
			Request: reflect.TypeFor[codeBody](), Example: `{"code":"print(1 + 2)","language":"python"}`, Produces: []string{"text/plain", stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[stream.Frame]()}, Handle: e.streamed(e.readCode)},
		{Method: "GET", Path: "/v2/box/{id}/runs", ID: "listRuns", Summary: "The latest commands, newest first", Response: reflect.TypeFor[runsView](), Handle: e.listRuns},
		{Method: "GET", Path: "/v2/box/{id}/runs/{run}", ID: "getRun", Summary: "One of the latest commands, with the beginning of its output", Response: reflect.TypeFor[history.RunDetail](), Handle: e.getRun},
		{Method: "POST", Path: "/v2/box/{id}/runs/{run}/cancel", ID: "cancelRun", Summary: "Kill a running command", Response: reflect.TypeFor[history.RunView](), Handle: e.cancelRun},
		{Method: "GET", Path: "/v2/box/{id}/logs", ID: "listLogs", Summary: "The log of a box", Query: reflect.TypeFor[logsQuery](), Response: reflect.TypeFor[logsView](), Handle: e.getLogs},
	}
}
