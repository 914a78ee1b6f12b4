// Package harness runs the custom harness of a box: a command that receives a prompt and writes its agent's actions as
// events (box-sse-v1) to standard output. Its output is untrusted: it is bounded, checked and encoded again.
package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"boxgate/api"
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

const (
	// lingerTimeout is how long a harness may continue after it has reported the end of the run.
	lingerTimeout = 10 * time.Second
	// writeTimeout is how long the client of a run that was cut short may take to read the remaining events.
	writeTimeout = 10 * time.Second
)

// errLingers kills a harness that exceeds lingerTimeout.
var errLingers = errors.New("the harness went on after it had ended the run")

// result is the result of a run.
type result struct {
	run *history.Run
	err error
}

// start runs the harness to its end. Like all runs, it survives a disconnected client.
func (e *Endpoints) start(ctx context.Context, j *job, to sink, started func(*history.Run)) <-chan result {
	done := make(chan result, 1)
	go func() {
		what := history.Job{Type: history.Agent, Prompt: j.body.Prompt, Model: j.model(), Timeout: j.timeout}
		run, _, err := e.History.Do(context.WithoutCancel(ctx), j.box.ID, what, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
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

// exec runs the harness and parses its events.
func (e *Endpoints) exec(ctx context.Context, j *job, run *history.Run, to sink) (api.ExecResult, error) {
	defer context.AfterFunc(ctx, to.cutShort)()
	if len(j.body.Files) > 0 {
		name, remove, err := e.writeFiles(ctx, j)
		if err != nil {
			return api.ExecResult{}, err
		}
		defer remove()
		j.request.Env["PROMPT_FILES_PATH"] = name
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p := &parser{emit: to.event, kill: stop, onEnd: func() {
		late := time.AfterFunc(lingerTimeout, func() { stop(errLingers) })
		context.AfterFunc(running, func() { late.Stop() })
	}}
	var complaints bytes.Buffer
	res, err := e.Commands.Exec(running, j.box.ID, j.request, p, &bounded{w: &complaints, room: 4 << 10})
	if err == nil {
		p.finish()
	}
	switch {
	case p.refused != nil:
		return res, p.refused
	case errors.Is(context.Cause(running), errLingers):
		e.History.Log(j.box.ID, "warn", "agent", "%v", errLingers)
	case err != nil:
		return res, err
	}
	to.event("stats", mustMarshal(statsData{CPUNs: res.CPU.Nanoseconds()}))
	return e.conclude(j, run, p, res, cleanLine(complaints.String(), 1<<10))
}

// conclude determines the result of a run.
func (e *Endpoints) conclude(j *job, run *history.Run, p *parser, res api.ExecResult, complaints string) (api.ExecResult, error) {
	if p.dropped > 0 {
		e.History.Log(j.box.ID, "warn", "agent", "the harness wrote %d events that are not of the protocol; they were dropped", p.dropped)
	}
	if complaints != "" {
		e.History.Log(j.box.ID, "info", "agent", "%s", complaints)
	}
	switch {
	case p.problem != "":
		return res, api.Errorf(api.ErrUnavailable, "%s", p.problem)
	case p.answer == nil && res.ExitCode != 0:
		return res, api.Errorf(api.ErrUnavailable, "the harness exited with status %d and no result: %s", res.ExitCode, complaints)
	case p.answer == nil:
		p.answerWith(doneData{Output: p.text.String()})
	}
	e.History.SetAnswer(run, *p.answer)
	res.ExitCode = 0
	return res, nil
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
	select {
	case <-e.start(r.Context(), j, s, func(run *history.Run) { s.event("run_start", mustMarshal(runStart{run.ID()})) }):
	case <-r.Context().Done():
	}
	s.release()
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

// removal bounds the removal of a file in the box, which is done by a program of the box.
const removal = 10 * time.Second

// writeFiles writes the files of a prompt into the box, as the box's own user. It returns the path for PROMPT_FILES_PATH,
// and a function that removes the file if the harness did not. If the run is cut short, the file stays, because the box
// may have been paused.
func (e *Endpoints) writeFiles(ctx context.Context, j *job) (name string, remove func(), err error) {
	data, err := json.Marshal(j.body.Files)
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	script := `umask 077; f=$(mktemp /tmp/prompt-files-XXXXXXXX) && cat >"$f" && printf %s "$f"`
	res, err := e.Commands.Exec(ctx, j.box.ID, api.ExecRequest{Command: []string{"sh", "-c", script}, Dir: "/", Stdin: bytes.NewReader(data)}, &bounded{w: &out, room: 256}, io.Discard)
	if err != nil {
		return "", nil, err
	}
	if name = out.String(); res.ExitCode != 0 || !strings.HasPrefix(name, "/tmp/prompt-files-") {
		return "", nil, api.Errorf(api.ErrUnavailable, "the files of the prompt could not be written to /tmp in the box; is it full?")
	}
	return name, func() {
		ctx, cancel := context.WithTimeout(ctx, removal)
		defer cancel()
		if ctx.Err() == nil {
			rm := api.ExecRequest{Command: []string{"rm", "-f", "--", name}, Dir: "/"}
			_, _ = e.Commands.Exec(ctx, j.box.ID, rm, io.Discard, io.Discard)
		}
	}, nil
}

// bounded passes on the first bytes of the output, then returns [io.ErrShortWrite].
type bounded struct {
	w    io.Writer
	room int
}

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.room)
	b.room -= n
	if _, err := b.w.Write(p[:n]); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return len(p), nil
}
