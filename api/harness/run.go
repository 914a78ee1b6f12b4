package harness

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/stream"
)

// agentView is the answer of run.
type agentView struct {
	RunID  string       `json:"run_id"`
	Status string       `json:"status" enum:"running completed failed cancelled"`
	Output history.Text `json:"output,omitempty"`
	Error  history.Text `json:"error_message,omitempty"`
}

// sink takes the events of a run.
type sink interface {
	event(name string, data []byte)
}

// ended is how a run ended.
type ended struct {
	run *history.Run
	err error
}

// start runs the harness to its end. It goes on when the client has gone, as every run does.
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
			to.event("error", mustMarshal(errorData{body.Error}))
		}
		done <- ended{run, err}
		e.notify(j, run)
	}()
	return done
}

// exec runs the harness and reads its events.
func (e *Endpoints) exec(ctx context.Context, j *job, run *history.Run, to sink) (api.ExecResult, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if len(j.body.Files) > 0 {
		name, remove, err := e.writeFiles(ctx, j)
		if err != nil {
			return api.ExecResult{}, err
		}
		defer remove()
		j.request.Env["PROMPT_FILES_PATH"] = name
	}
	var tooLarge error
	p := &parser{emit: to.event, fail: func(err error) {
		tooLarge = err
		stop(err)
	}}
	var complaints bytes.Buffer
	res, err := e.Host.Exec(ctx, j.box.ID, j.request, p, &bounded{w: &complaints, room: 4 << 10})
	if tooLarge != nil {
		return res, tooLarge
	}
	if err != nil {
		return res, err
	}
	p.finish()
	to.event("stats", mustMarshal(statsData{CPUNs: res.CPU.Nanoseconds()}))
	return e.conclude(j, run, p, res, cleanLine(complaints.String(), 1<<10))
}

// conclude decides how a run of a harness ended.
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

// run is POST run.
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
		view, _ := e.History.Find(j.box.ID, end.run.ID())
		return rest.Reply{Body: agentView{end.run.ID(), view.Status, view.Output, view.ErrorMessage}}, nil
	case <-r.Context().Done():
		return rest.Reply{}, r.Context().Err()
	}
}

// nowhere is where events go that nobody listens to.
type nowhere struct{}

func (nowhere) event(string, []byte) {}

// stream is POST run/stream.
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
	gone bool // the client, or the handler
}

func (s *events) event(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	if _, err := s.w.Write([]byte("event: " + name + "\ndata: " + string(data) + "\n\n")); err != nil || s.rc.Flush() != nil {
		s.gone = true
	}
}

// leave ends the answer. A write that waits for the client is cut short.
func (s *events) leave() {
	if s.mu.TryLock() { // nobody waits
		s.gone = true
		s.mu.Unlock()
		return
	}
	_ = s.rc.SetWriteDeadline(time.Unix(1, 0))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}
