package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/api/history"
	"boxgate/policy"
	"boxgate/quota"
)

// Commands runs commands in boxes.
type Commands interface {
	// Exec runs a command to its end and copies its output as it arrives. The two writers are safe for concurrent use and
	// block only while the API's client does. After a writer has failed, the rest of its stream is discarded, at a
	// limited rate per box. If ctx ends, the command is killed and ctx's error returned. A command that ran is not an
	// error, whatever its exit code.
	Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error)
}

// Settings keeps the conversations and sums of boxes.
type Settings interface {
	// Configure changes a box's configuration. If change returns an error, the configuration stays as it was. Changes of
	// the same box are serialized.
	Configure(ctx context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error)
}

// Runner runs the agents of boxes. Safe for concurrent use.
type Runner struct {
	Commands Commands
	Settings Settings
	History  *history.History
}

// Task is a run that no client waits for.
type Task struct {
	Prompt, Folder, Model string // an empty model is the box's
	Options               json.RawMessage
}

// Run runs the agent of a box as the given run of its history, and returns its answer. A box without an agent is [ErrNone].
func (e *Runner) Run(ctx context.Context, box api.Box, run *history.Run, t Task) (history.Answer, api.ExecResult, error) {
	if agents.RunnerOf(box.Hosted) == nil {
		return history.Answer{}, api.ExecResult{}, ErrNone
	}
	j := &job{box: box, body: runBody{Prompt: t.Prompt, Folder: t.Folder, AgentOptions: freeForm{t.Options}}}
	if err := j.body.check(); err != nil {
		return history.Answer{}, api.ExecResult{}, err
	}
	j.prepare(t.Model)
	res, err := e.exec(ctx, j, run, discard{})
	return j.answer, res, err
}

const (
	// lingerTimeout is how long a harness may continue after it has reported the end of the run.
	lingerTimeout = 10 * time.Second
	// skillsTimeout bounds the installation of skills before a run.
	skillsTimeout = 2 * time.Minute
)

// errLingers kills a harness that exceeds lingerTimeout.
var errLingers = errors.New("the harness went on after it had ended the run")

// exec runs the harness, a second time if its answer does not match the schema of the run.
func (e *Runner) exec(ctx context.Context, j *job, run *history.Run, to sink) (api.ExecResult, error) {
	defer context.AfterFunc(ctx, to.cutShort)()
	if len(j.body.Files) > 0 {
		name, remove, err := e.writeFiles(ctx, j)
		if err != nil {
			return api.ExecResult{}, err
		}
		defer remove()
		j.request.Env["PROMPT_FILES_PATH"] = name
		j.dropFiles(ctx)
	}
	e.installSkills(ctx, j.box)
	j.metered = func() history.Metered { return e.History.MeteredBy(run) }
	p, res, err := e.attempts(ctx, j, to)
	if p.answer != nil {
		j.answer = *p.answer
		e.History.SetAnswer(run, j.answer)
	}
	e.record(ctx, j)
	if p.ended {
		to.event("stats", mustMarshal(statsData{CPUNs: res.CPU.Nanoseconds()}))
	}
	if err == nil && p.unfit != nil {
		err = api.Errorf(api.ErrUnavailable, "the answer does not match the schema: %s", cleanLine(p.unfit.Error(), 1<<10))
	}
	if err == nil {
		res.ExitCode = 0
	}
	return res, err
}

// attempts runs the harness once, or twice if the first answer does not match the schema. It returns the last attempt.
func (e *Runner) attempts(ctx context.Context, j *job, to sink) (*parser, api.ExecResult, error) {
	session := j.box.Hosted.Session
	first, res, err := e.attempt(ctx, j, to, j.command(j.body.Prompt, session), history.Answer{})
	if err != nil || first.unfit == nil || ctx.Err() != nil {
		return first, res, err
	}
	why := cleanLine(first.unfit.Error(), 1<<10)
	prompt := j.body.Prompt + "\n\nThe last answer does not match the JSON schema: " + why + ". Answer with JSON that matches it, and nothing else."
	if len(prompt) > api.MaxArgument {
		return first, res, nil
	}
	e.History.Log(j.box.ID, "warn", "agent", "the answer does not match the schema, so the agent is asked once more: %s", why)
	session = cmp.Or(first.answer.SessionID, session)
	second, again, err := e.attempt(ctx, j, to, j.command(prompt, session), *first.answer)
	again.CPU += res.CPU
	return second, again, err
}

// attempt runs the harness once and parses its events. before is the answer of an earlier attempt.
func (e *Runner) attempt(ctx context.Context, j *job, to sink, command []string, before history.Answer) (*parser, api.ExecResult, error) {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	p := &parser{emit: to.event, kill: stop, before: before, metered: j.metered, onEnd: func() {
		late := time.AfterFunc(lingerTimeout, func() { stop(errLingers) })
		context.AfterFunc(running, func() { late.Stop() })
	}}
	if j.schema != nil {
		p.check = j.fit
	}
	var complaints bytes.Buffer
	j.request.Command = command
	res, err := e.Commands.Exec(running, j.box.ID, j.request, p, &bounded{w: &complaints, room: 4 << 10})
	if err == nil {
		p.finish()
	}
	switch {
	case p.refused != nil:
		return p, res, p.refused
	case errors.Is(context.Cause(running), errLingers):
		e.History.Log(j.box.ID, "warn", "agent", "%v", errLingers)
	case err != nil:
		return p, res, err
	}
	p.ended = true
	return p, res, e.conclude(j, p, res, cleanLine(complaints.String(), 1<<10))
}

// conclude determines the result of a harness that has ended.
func (e *Runner) conclude(j *job, p *parser, res api.ExecResult, complaints string) error {
	if p.dropped > 0 {
		e.History.Log(j.box.ID, "warn", "agent", "the harness wrote %d events that are not of the protocol; they were dropped", p.dropped)
	}
	if complaints != "" {
		e.History.Log(j.box.ID, "info", "agent", "%s", complaints)
	}
	switch {
	case p.problem != "":
		return api.Errorf(api.ErrUnavailable, "%s", p.problem)
	case p.answer == nil && res.ExitCode == exitNoProgram && j.box.Hosted.CustomRunner == nil:
		return api.Errorf(api.ErrUnavailable, "the image of the box has no %s: run `gateway image build %s`, and create the box again, without a runtime", j.box.Hosted.Agent, agents.Image)
	case p.answer == nil && res.ExitCode != 0:
		return api.Errorf(api.ErrUnavailable, "the harness exited with status %d and no result: %s", res.ExitCode, complaints)
	case p.answer == nil:
		p.answerWith(doneData{Output: p.text.String()})
	}
	return nil
}

// exitNoProgram is the exit code of a program that does not exist.
const exitNoProgram = 127

// fit returns an answer that matches the schema, without the fence that models put around JSON.
func (j *job) fit(output string) (string, error) {
	text := strings.TrimSpace(output)
	if inner, fenced := strings.CutPrefix(text, "```"); fenced {
		_, inner, _ = strings.Cut(inner, "\n")
		text = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(inner), "```"))
	}
	if err := j.schema.Check([]byte(text)); err != nil {
		return output, err
	}
	return text, nil
}

// record adds a run to the sums of its box, and keeps its conversation for the next one.
func (e *Runner) record(ctx context.Context, j *job) {
	_, err := e.Settings.Configure(context.WithoutCancel(ctx), j.box.ID, func(c *api.Configuration) error {
		t := &c.Hosted.Totals
		t.Prompts++
		t.InputTokens, t.OutputTokens = sum(j.answer.InputTokens, t.InputTokens), sum(j.answer.OutputTokens, t.OutputTokens)
		if j.answer.SessionID != "" {
			c.Hosted.Session = j.answer.SessionID
		}
		return nil
	})
	if err != nil && !errors.Is(err, api.ErrNotFound) {
		e.History.Log(j.box.ID, "warn", "system", "the conversation of a run could not be stored: %v", err)
	}
}

// installSkills installs and removes skills in a box as its configuration lists them. A skill that cannot be installed does not prevent the run.
func (e *Runner) installSkills(ctx context.Context, box api.Box) {
	if len(box.Hosted.Skills) == 0 && !box.Hosted.SkillsRemoved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, skillsTimeout)
	defer cancel()
	var complaints bytes.Buffer
	req := api.ExecRequest{Command: agents.SkillsCommand(box.Hosted.Skills), Dir: "/"}
	res, err := e.Commands.Exec(ctx, box.ID, req, io.Discard, &bounded{w: &complaints, room: 4 << 10})
	if err != nil || res.ExitCode != 0 {
		e.History.Log(box.ID, "warn", "system", "not all skills are installed: %s", cleanLine(complaints.String(), 1<<10))
	}
}

// removal bounds the removal of a file in the box, which is done by a program of the box.
const removal = 10 * time.Second

// writeFiles writes the files of a prompt into the box, as the box's own user. It returns the path for PROMPT_FILES_PATH,
// and a function that removes the file if the harness did not. If the run is cut short, the file stays, because the box
// may have been paused.
func (e *Runner) writeFiles(ctx context.Context, j *job) (name string, remove func(), err error) {
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

// dropFiles gives back the memory of the files, which a run of hours does not need once they are in the box. ctx has the scope of the
// request.
func (j *job) dropFiles(ctx context.Context) {
	j.body.Files = nil
	quota.ScopeOf(ctx).Release(quota.Memory, j.memory)
	j.memory = 0
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
