package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
)

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
	hurry() // the run was cut short and must not wait for its client
}

const (
	// lingering is how long a harness may continue after it has reported the end of the run.
	lingering = 10 * time.Second
	// patience is how long the client of a run that was cut short may take to read the remaining events.
	patience = 10 * time.Second
)

// errLingers kills a harness that exceeds lingering.
var errLingers = errors.New("the harness went on after it had ended the run")

// ended is the result of a run.
type ended struct {
	run *history.Run
	err error
}

// start runs the harness to its end. Like all runs, it survives a disconnected client.
func (e *Endpoints) start(ctx context.Context, j *job, to sink, started func(*history.Run)) <-chan ended {
	done := make(chan ended, 1)
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
		done <- ended{run, err}
		e.notify(j, run)
	}()
	return done
}

// exec runs the harness and parses its events.
func (e *Endpoints) exec(ctx context.Context, j *job, run *history.Run, to sink) (api.ExecResult, error) {
	defer context.AfterFunc(ctx, to.hurry)()
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
	p := &parser{emit: to.event, fail: stop, over: func() {
		late := time.AfterFunc(lingering, func() { stop(errLingers) })
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
		p.finished(doneData{Output: p.text.String()})
	}
	e.History.Answered(run, *p.answer)
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
	done := e.start(r.Context(), j, nowhere{}, func(run *history.Run) { begun <- run })
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

// nowhere discards events.
type nowhere struct{}

func (nowhere) event(string, []byte) {}
func (nowhere) hurry()               {}

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
	s.leave()
	return rest.Reply{Written: true}, nil
}

// events writes events to a client.
type events struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu   sync.Mutex
	gone bool // the client disconnected, or the handler returned
	done bool // the answer was sent: for the client, the run is over, whatever the harness does next

	deadline sync.Mutex // separate from mu, which a blocked write holds
	left     bool       // the handler has returned, and the connection may serve another request; guarded by deadline
}

func (s *events) event(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.done && name == "error" {
		return
	}
	s.done = s.done || name == "done"
	if _, err := s.w.Write([]byte("event: " + name + "\ndata: " + string(data) + "\n\n")); err != nil || s.rc.Flush() != nil {
		s.gone = true
	}
}

// hurry limits the time of blocked writes to patience.
func (s *events) hurry() {
	s.deadline.Lock()
	defer s.deadline.Unlock()
	if !s.left {
		_ = s.rc.SetWriteDeadline(time.Now().Add(patience))
	}
}

// leave ends the response. A blocked write is aborted.
func (s *events) leave() {
	s.deadline.Lock()
	s.left = true
	s.deadline.Unlock()
	if s.mu.TryLock() { // no write is blocked
		s.gone = true
		_ = s.rc.SetWriteDeadline(time.Time{}) // the connection may carry further requests
		s.mu.Unlock()
		return
	}
	_ = s.rc.SetWriteDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}
