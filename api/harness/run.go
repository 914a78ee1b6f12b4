// Package harness runs the agent of a box, by a built-in harness or a custom one: a command that receives a prompt and writes
// the agent's actions as events (box-sse-v1) to standard output. Its output is untrusted: it is bounded, checked and encoded again.
package harness

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"reflect"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/history"
	"boxgate/api/problem"
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

// Endpoints serves runs of agents.
type Endpoints struct {
	Runner
	Boxes    rest.Finder
	Webhooks Webhooks
	Bodies   strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/run", ID: "runAgent", Summary: "Run the agent of a box to its end, or in the background with a webhook; refused for a box without an agent", Request: reflect.TypeFor[runBody](), Example: `{"prompt":"Fix the failing test"}`, Response: reflect.TypeFor[agentView](), Handle: e.run},
		{Method: "POST", Path: "/v2/box/{id}/run/stream", ID: "streamAgent", Summary: "Run the agent of a box and stream its events; refused for a box without an agent",
			Request: reflect.TypeFor[runBody](), Example: `{"prompt":"Fix the failing test"}`, Produces: []string{stream.EventStream}, Items: []reflect.Type{reflect.TypeFor[runStart](), reflect.TypeFor[doneData](), reflect.TypeFor[errorData](), reflect.TypeFor[statsData]()}, Handle: e.stream},
	}
}

// agentView is the response of run.
type agentView struct {
	RunID  string       `json:"run_id"`
	Status string       `json:"status" enum:"running completed failed cancelled"`
	Output history.Text `json:"output,omitempty"`
	Error  history.Text `json:"error_message,omitempty"`
}

// sink receives the events of a run.
type sink interface {
	event(name string, data []byte)
	cutShort() // the run was cut short and must not wait for its client
}

// writeTimeout is how long the client of a run that was cut short may take to read the remaining events.
const writeTimeout = 10 * time.Second

// result is the result of a run.
type result struct {
	run *history.Run
	err error
}

// start runs the harness to its end. Like all runs, it survives a disconnected client, and ends with its API key.
func (e *Endpoints) start(ctx context.Context, j *job, to sink, started func(*history.Run)) <-chan result {
	done := make(chan result, 1)
	running, end := access.Outlive(ctx)
	go func() {
		defer end(nil)
		what := history.Job{Type: history.Agent, Prompt: j.body.Prompt, Model: j.model, Timeout: j.timeout}
		run, _, err := e.History.Do(running, j.box.ID, what, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
			started(run)
			return e.exec(ctx, j, run, to)
		})
		if err != nil {
			_, body := problem.StatusOf(err)
			to.event("error", stream.EscapeControls(mustMarshal(errorData{body.Error})))
		}
		done <- result{run, err}
		e.notify(j, run)
	}()
	return done
}

// run handles POST run.
func (e *Endpoints) run(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	j, err := e.read(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	begun := make(chan *history.Run, 1)
	done := e.start(r.Context(), j, discard{}, func(run *history.Run) { begun <- run })
	if j.body.Webhook.URL != "" {
		return rest.Reply{Body: agentView{RunID: (<-begun).ID(), Status: "running"}}, nil
	}
	select {
	case end := <-done:
		view, known := e.History.Find(j.box.ID, end.run.ID())
		if !known { // the box was deleted
			return rest.Reply{}, cmp.Or(end.err, api.ErrNotFound)
		}
		return rest.Reply{Body: agentView{end.run.ID(), view.Status, view.Output, view.ErrorMessage}}, nil
	case <-r.Context().Done():
		return rest.Reply{}, r.Context().Err()
	}
}

// discard discards events.
type discard struct{}

func (discard) event(string, []byte) {}
func (discard) cutShort()            {}

// stream handles POST run/stream.
func (e *Endpoints) stream(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	j, err := e.read(w, r)
	if err != nil {
		return rest.Reply{}, err
	}
	w.Header().Set("Content-Type", stream.EventStream)
	w.Header().Set("X-Accel-Buffering", "no") // reverse proxies must not buffer events
	s := &events{w: w, rc: http.NewResponseController(w)}
	stop := rest.Alive(w, s.beat)
	select {
	case <-e.start(r.Context(), j, s, func(run *history.Run) { s.event("run_start", mustMarshal(runStart{run.ID()})) }):
	case <-r.Context().Done():
	}
	s.release()
	stop()
	return rest.Reply{Written: true}, nil
}

// events writes events to a client.
type events struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu           sync.Mutex
	disconnected bool // the client disconnected, or the handler returned
	done         bool // the answer was sent: for the client, the run is over, whatever the harness does next

	deadlineMu sync.Mutex // separate from mu, which a blocked write holds
	returned   bool       // the handler has returned, and the connection may serve another request; guarded by deadlineMu
}

func (s *events) event(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnected || s.done && name == "error" {
		return
	}
	s.done = s.done || name == "done"
	if _, err := s.w.Write([]byte("event: " + name + "\ndata: " + string(data) + "\n\n")); err != nil || s.rc.Flush() != nil {
		s.disconnected = true
	}
}

// beat keeps the connection of a silent run alive by a comment (WHATWG HTML, section 9.2.6).
func (s *events) beat() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.disconnected {
		return false
	}
	_, err := s.w.Write([]byte(": alive\n\n"))
	s.disconnected = err != nil || s.rc.Flush() != nil
	return !s.disconnected
}

// cutShort limits the time of blocked writes to writeTimeout.
func (s *events) cutShort() {
	s.deadlineMu.Lock()
	defer s.deadlineMu.Unlock()
	if !s.returned {
		_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
}

// release ends the response. A blocked write is aborted.
func (s *events) release() {
	s.deadlineMu.Lock()
	s.returned = true
	s.deadlineMu.Unlock()
	if s.mu.TryLock() { // no write is blocked
		s.disconnected = true
		_ = s.rc.SetWriteDeadline(time.Time{}) // the connection may carry further requests
		s.mu.Unlock()
		return
	}
	_ = s.rc.SetWriteDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disconnected = true
}

func fileOf(media, name string, data []byte) fileBody {
	return fileBody{Data: base64.StdEncoding.EncodeToString(data), MediaType: media, Filename: name}
}
