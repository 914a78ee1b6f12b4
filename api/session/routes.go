package session

import (
	"context"
	"io"
	"reflect"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host starts the commands of sessions.
type Host interface {
	// StartSession starts a command in a box. EOF on stdin closes the command's input, and blocked writers block the
	// command. ctx is that of the whole session, not only of its start. A command that cannot be started is an
	// ErrUnavailable.
	StartSession(ctx context.Context, id policy.BoxID, req api.SessionRequest, stdin io.Reader, stdout, stderr io.Writer) (api.Session, error)
}

// Endpoints serves sessions. Use [New].
type Endpoints struct {
	boxes    rest.Finder
	host     Host
	history  *history.History
	bodies   strict.Bodies
	stopping chan struct{} // closed by Stop
	open     *registry
}

// New makes the endpoints.
func New(boxes rest.Finder, host Host, past *history.History, bodies strict.Bodies) *Endpoints {
	return &Endpoints{boxes: boxes, host: host, history: past, bodies: bodies, stopping: make(chan struct{}), open: newRegistry()}
}

// Stop ends all sessions, including sessions that wait for their client to reconnect: commands are killed and clients
// receive the reason. New sessions are refused. Call it once.
func (e *Endpoints) Stop() {
	close(e.stopping)
	for _, s := range e.open.stop() {
		s.stop()
	}
}

// Wait waits, after Stop, until all commands have ended and all clients have received the reason.
func (e *Endpoints) Wait(ctx context.Context) error {
	select {
	case <-e.open.empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// query is the query of the route.
type query struct {
	Session string `json:"session,omitempty" doc:"execId of the session to reconnect to; absent: start a new session"`
	Offset  int64  `json:"offset,omitempty" min:"0" doc:"number of output bytes received so far"`
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/exec-session", ID: "openSession", Summary: "Run an interactive command over a WebSocket: input, output, signals and a terminal", Query: reflect.TypeFor[query](), Status: 101, Handle: e.serve},
	}
}
