// Package exec serves commands in a box: exec, exec-stream, code, code-stream, and their runs and logs.
package exec

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/api/capture"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/stream"
	"boxgate/api/strict"
	"boxgate/audit"
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
		{Method: "POST", Path: "/v2/box/{id}/exec", ID: "runCommand", Summary: "Run a command and answer with its output", Request: reflect.TypeFor[execBody](), Example: `{"command":["sh","-c","echo hello"],"timeout":30000}`, Response: reflect.TypeFor[execView](), Handle: e.buffered(e.readCommand), Late: late},
		{Method: "POST", Path: "/v2/box/{id}/exec-stream", ID: "streamCommand", Summary: "Run a command and stream its output, then an exit event; with Accept: application/x-ndjson, in frames that separate the streams",
			Request: reflect.TypeFor[execBody](), Example: `{"command":["sh","-c","echo hello"],"timeout":30000}`, Produces: []string{"text/plain", stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[stream.Frame]()}, Handle: e.streamed(e.readCommand)},
		{Method: "POST", Path: "/v2/box/{id}/code", ID: "runCode", Summary: "Run source text and answer with its output", Request: reflect.TypeFor[codeBody](), Example: `{"code":"console.log(1 + 2)","language":"js"}`, Response: reflect.TypeFor[execView](), Handle: e.buffered(e.readCode), Late: late},
		{Method: "POST", Path: "/v2/box/{id}/code-stream", ID: "streamCode", Summary: "Run source text and stream its output as exec-stream does",
			Request: reflect.TypeFor[codeBody](), Example: `{"code":"print(1 + 2)","language":"python"}`, Produces: []string{"text/plain", stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[stream.Frame]()}, Handle: e.streamed(e.readCode)},
		{Method: "GET", Path: "/v2/box/{id}/runs", ID: "listRuns", Summary: "The latest commands, newest first", Response: reflect.TypeFor[runsView](), Handle: e.listRuns},
		{Method: "GET", Path: "/v2/box/{id}/runs/{run}", ID: "getRun", Summary: "One of the latest commands, with the beginning of its output", Response: reflect.TypeFor[history.RunDetail](), Handle: e.getRun},
		{Method: "POST", Path: "/v2/box/{id}/runs/{run}/cancel", ID: "cancelRun", Summary: "Kill a running command", Response: reflect.TypeFor[history.RunView](), Handle: e.cancelRun},
		{Method: "GET", Path: "/v2/box/{id}/logs", ID: "listLogs", Summary: "The log of a box", Query: reflect.TypeFor[logsQuery](), Response: reflect.TypeFor[logsView](), Handle: e.getLogs},
		{Method: "POST", Path: "/v2/box/{id}/exec-detached", ID: "startCommand", Summary: "Start a command and answer with its run, without its output", Status: 202,
			Request: reflect.TypeFor[execBody](), Example: `{"command":["sh","-c","make >build.log 2>&1"],"timeout":3600000}`, Response: reflect.TypeFor[history.RunDetail](), Handle: e.detached},
	}
}

// execBody is a command to run.
type execBody struct {
	Command []string          `json:"command" doc:"program and arguments; executed without a shell" min:"1" example:"[\"ls\",\"-l\"]"`
	Folder  string            `json:"folder,omitempty" doc:"working directory, absolute or below the home directory"`
	Timeout *int64            `json:"timeout,omitempty" doc:"milliseconds after which the command is killed" min:"1" max:"604800000" example:"30000"`
	User    string            `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box; an extension" example:"root"`
	Env     map[string]string `json:"env,omitempty" doc:"variables besides those of the box; never returned" example:"{\"CI\":\"1\"}"`
}

// execView is the response of exec.
type execView struct {
	ExitCode  int    `json:"exit_code" doc:"124: killed after its timeout; -1: unknown, and error has the reason"`
	Output    string `json:"output" doc:"standard output"`
	Error     string `json:"error,omitempty" doc:"standard error"`
	RunID     string `json:"run_id"`
	CPUNs     int64  `json:"cpu_ns"`
	Truncated bool   `json:"truncated,omitempty" doc:"output or error was cut off, and ends with a line in brackets about that"`
}

func (b *execBody) request(box api.Box) (api.ExecRequest, error) {
	var p problem.List
	spec.Command(&p, "/command", b.Command)
	dir, user := spec.Folder(&p, "/folder", box.HomeDir(), b.Folder), spec.User(&p, "/user", box.UserName(), b.User)
	if b.Timeout != nil && (*b.Timeout < 1 || *b.Timeout > 7*24*3600*1000) {
		p.Add("/timeout", "must be between 1 and 604800000 milliseconds")
	}
	spec.Environment(&p, "/env", b.Env)
	return api.ExecRequest{Command: b.Command, Dir: dir, User: user, Env: b.Env}, p.Err()
}

// command is a command to run and its entry in the history.
type command struct {
	box     policy.BoxID
	request api.ExecRequest
	job     history.Job
	mark    string             // the mark of markWatch; empty: no mark
	started func(*history.Run) // called once the run is in the history; may be nil
}

func (e *Endpoints) readCommand(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return nil, err
	}
	var body execBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return nil, err
	}
	req, err := body.request(box)
	if err != nil {
		return nil, err
	}
	job := history.Job{Type: history.Shell, User: req.User, Prompt: strings.Join(body.Command, " "), Timeout: milliseconds(body.Timeout)}
	return &command{box: box.ID, request: req, job: job}, nil
}

// milliseconds converts an optional number of milliseconds.
func milliseconds(n *int64) time.Duration {
	if n == nil {
		return 0
	}
	return time.Duration(*n) * time.Millisecond
}

// result is the result of a command, and the error for its caller.
type result struct {
	run *history.Run
	res api.ExecResult
	err error
}

// start runs a command until it ends, its timeout passes or the run is cancelled. The command survives a disconnected
// client: the connection may only have broken, and a client can cancel a run explicitly. It ends with its API key. cutShort is called when
// the command is cut short; from then on, the writers must not block it for long.
func (e *Endpoints) start(ctx context.Context, c *command, stdout, stderr io.Writer, cutShort func()) <-chan result {
	done, left := make(chan result, 1), ctx.Done()
	running, end := access.Outlive(ctx)
	go func() {
		defer end(nil)
		run, res, err := e.History.Do(running, c.box, c.job, func(ctx context.Context, run *history.Run) (api.ExecResult, error) {
			if c.started != nil {
				c.started(run)
			}
			defer context.AfterFunc(ctx, cutShort)()
			lack, request := &markWatch{mark: c.mark, w: stderr}, c.request
			request.Left = left
			errout := &lines{w: e.recordOutput(run, lack)}
			res, err := e.Host.Exec(ctx, c.box, request, e.recordOutput(run, stdout), errout)
			if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				res, err = timedOut(res, c.job.Timeout, errout), nil
			}
			if what, lacking := lack.message(); err == nil && lacking {
				err = problem.Refuse(http.StatusUnprocessableEntity, "/language: %s", what)
			}
			return res, err
		})
		done <- result{run, res, err}
	}()
	return done
}

// exitTimeout is the exit code of a command that was killed after its timeout, the same as of timeout(1).
const exitTimeout = 124

// timedOut returns the result of a command that was killed after its timeout, and reports it in its standard error.
func timedOut(res api.ExecResult, timeout time.Duration, errout *lines) api.ExecResult {
	res.ExitCode, res.TimedOut = exitTimeout, true
	errout.line(fmt.Sprintf("boxgate: the command was killed after its timeout of %v", timeout))
	return res
}

// lines passes output on, and can add a line to it.
type lines struct {
	w    io.Writer
	last atomic.Int32 // the last byte of the output; 0: none
}

// Write implements [io.Writer].
func (l *lines) Write(b []byte) (int, error) {
	if len(b) > 0 {
		l.last.Store(int32(b[len(b)-1]))
	}
	return l.w.Write(b)
}

// line adds a line after the end of the output.
func (l *lines) line(text string) {
	if last := l.last.Load(); last != 0 && last != '\n' {
		text = "\n" + text
	}
	_, _ = io.WriteString(l.w, text+"\n")
}

// exitUnknown is the exit code in the response to a command whose exit code the gateway does not know.
const exitUnknown = -1

// late is the response to a command that failed after the status of its response was sent.
func late(err error) any {
	_, body := problem.StatusOf(err)
	return execView{ExitCode: exitUnknown, Error: body.Error}
}

// recordOutput records the beginning of a run's output in the history and passes the output on to w. It fails once the
// history is full and w has failed.
func (e *Endpoints) recordOutput(r *history.Run, w io.Writer) io.Writer {
	var failed error
	return writerFunc(func(b []byte) (int, error) {
		full := e.History.AppendOutput(r, b)
		if failed == nil {
			_, failed = w.Write(b)
		}
		if full && failed != nil {
			return 0, failed
		}
		return len(b), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// reader parses a command from a request.
type reader func(http.ResponseWriter, *http.Request) (*command, error)

// buffered handles POST exec and POST code, which return the whole output in one response.
func (e *Endpoints) buffered(read reader) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
		c, err := read(w, r)
		if err != nil {
			return rest.Reply{}, err
		}
		answer, err := e.Output.Open(r.Context(), c.box)
		if err != nil {
			return rest.Reply{}, err
		}
		stdout, stderr := answer.Output(e.MaxOutput), answer.Output(e.MaxOutput)
		select {
		case end := <-e.start(r.Context(), c, stdout, stderr, func() {}):
			if end.err != nil {
				return rest.Reply{}, end.err
			}
			return rest.Reply{Body: execView{
				ExitCode: end.res.ExitCode, Output: stdout.Text(), Error: stderr.Text(), RunID: end.run.ID(),
				CPUNs: end.res.CPU.Nanoseconds(), Truncated: stdout.Cut() || stderr.Cut(),
			}}, nil
		case <-r.Context().Done():
			return rest.Reply{}, r.Context().Err()
		}
	}
}

// codeBody is source text to run.
type codeBody struct {
	Code     string `json:"code" example:"console.log(1 + 2)"`
	Language string `json:"language" enum:"js ts python"`
	Folder   string `json:"folder,omitempty" doc:"working directory, absolute or below the home directory"`
	Timeout  *int64 `json:"timeout,omitempty" doc:"milliseconds after which the code is killed" min:"1" max:"604800000" example:"30000"`
}

// withRequire is an option of node that defines require for code with import or a top-level await, which has none of its own.
const withRequire = `'--import=data:text/javascript,import{createRequire}from"node:module";globalThis.require??=createRequire(process.cwd()+"/")'`

// runModule runs JavaScript on standard input as node's own detection finds it: as a module if it has import, export or a top-level await.
// An older node gets it as a module if it cannot parse it as a script.
const runModule = `
set -- "$1" $(node -p 'process.versions.node.replaceAll(".", " ")' 2>/dev/null)
newer() { [ "$major" -gt "$1" ] || { [ "$major" -eq "$1" ] && [ "$minor" -ge "$2" ]; }; }
major=${2:-0} minor=${3:-0}
js() {
	if [ "$major" -ne 21 ] && newer 20 19 && { [ "$major" -ne 22 ] || newer 22 7; }; then exec node ` + withRequire + ` -; fi
	code=$(cat; printf x) && code=${code%x}
	if printf %s "$code" | node --check - >/dev/null 2>&1; then
		printf %s "$code" | node -
	elif newer 18 18; then
		printf %s "$code" | node ` + withRequire + ` --input-type=module -
	else
		printf %s "$code" | node --input-type=module -
	fi
	exit
}
`

// interpreters are shell scripts that exec the interpreter of a language. The interpreter reads the code from standard
// input, so the code is in no file and in no argument list, and the code itself sees an empty standard input. If the
// image has no interpreter, the script prints an error to stderr after the mark passed as $1.
var interpreters = map[string]string{
	"js": `if command -v node >/dev/null; then` + runModule + `js; fi
command -v deno >/dev/null && exec deno run --quiet --allow-all --ext=js -
command -v bun >/dev/null && exec bun run -
printf '%s%s' "$1" 'the image has no JavaScript runtime; create the box with an image that has node' >&2`,
	"ts": `if command -v node >/dev/null; then` + runModule + `
	if newer 23 6 || { [ "$major" -eq 22 ] && newer 22 18; }; then
		exec node --disable-warning=ExperimentalWarning ` + withRequire + ` -
	fi
	if command -v esbuild >/dev/null; then
		js=$(esbuild --loader=ts --format=esm --log-level=error) || exit
		printf '%s\n' "$js" | js
		exit
	fi
fi
command -v deno >/dev/null && exec deno run --quiet --allow-all --ext=ts -
command -v bun >/dev/null && exec bun run -
printf '%s%s' "$1" "the image has nothing that runs TypeScript: that takes node 22.18 or 23.6 and later (it has ${2:-none}${3:+.$3}), node with esbuild, deno or bun; create the box with such an image, or send JavaScript" >&2`,
	"python": `command -v python3 >/dev/null && exec python3 -
command -v python >/dev/null && exec python -
printf '%s%s' "$1" 'the image has no Python; create the box with an image that has python3' >&2`,
}

func (e *Endpoints) readCode(w http.ResponseWriter, r *http.Request) (*command, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return nil, err
	}
	var body codeBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return nil, err
	}
	script, known := interpreters[body.Language]
	if !known {
		return nil, problem.Invalid("/language", "must be js, ts or python")
	}
	if body.Code == "" {
		return nil, problem.Invalid("/code", "must not be empty")
	}
	mark := "boxgate-" + rand.Text() + ": "
	asCommand := execBody{Command: []string{"sh", "-c", script, "boxgate", mark}, Folder: body.Folder, Timeout: body.Timeout}
	req, err := asCommand.request(box)
	if err != nil {
		return nil, err
	}
	req.Stdin = strings.NewReader(body.Code)
	job := history.Job{Type: history.Shell, Prompt: body.Language + ": " + body.Code, Timeout: milliseconds(body.Timeout)}
	return &command{box: box.ID, request: req, job: job, mark: mark}, nil
}

// markWatch passes a command's standard error on to w, unless it begins with mark. Only our scripts know the mark, so the
// rest is then the script's message about the missing interpreter.
type markWatch struct {
	mark string // empty: everything is passed on
	w    io.Writer

	mu     sync.Mutex
	prefix []byte // the beginning, while it may still turn out to be mark, or is
	pass   bool
}

// Write implements [io.Writer].
func (l *markWatch) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mark == "" || l.pass {
		return l.w.Write(b)
	}
	both := append(slices.Clone(l.prefix), b...)
	if n := min(len(both), len(l.mark)); string(both[:n]) != l.mark[:n] {
		l.pass, l.prefix = true, nil
		if _, err := l.w.Write(both); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	l.prefix = both[:min(len(both), maxMessage)]
	return len(b), nil
}

// maxMessage bounds the message of a script, in bytes.
const maxMessage = 4 << 10

// message returns the script's message, if there is one. Otherwise it passes on output held back because it started like
// the mark.
func (l *markWatch) message() (what string, lacking bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text, ok := strings.CutPrefix(string(l.prefix), l.mark); ok && l.mark != "" {
		return text, true
	}
	if len(l.prefix) > 0 {
		_, _ = l.w.Write(l.prefix)
		l.prefix = nil
	}
	return "", false
}

// withRequests adds the requests to a box's public URLs to its log, by time.
func withRequests(logs []history.LogEntry, events []audit.Event) []history.LogEntry {
	for i := range events {
		if e := &events[i]; e.Stage == policy.StageURL && e.Phase != audit.PhaseOpen {
			logs = append(logs, requestEntry(e))
		}
	}
	slices.SortStableFunc(logs, func(a, b history.LogEntry) int { return int(a.Timestamp - b.Timestamp) })
	return logs
}

// requestEntry formats a request as a log line: client, request, status, bytes of the bodies, duration, and the
// credential or the reason of the refusal.
func requestEntry(e *audit.Event) history.LogEntry {
	level := "info"
	switch {
	case e.Status >= 500:
		level = "error"
	case e.Verdict != policy.Allow:
		level = "warn"
	}
	client := "-"
	if e.Peer.IsValid() {
		client = e.Peer.String()
	}
	by := string(e.Credential)
	if by == "" {
		by = "refused, " + string(e.Reason)
	}
	text := fmt.Sprintf("%s %s port %d %s: %d, %d bytes in, %d out, %v, %s",
		client, e.Method, e.Port, e.Path, e.Status, e.BytesIn, e.BytesOut, e.Duration.Round(10*time.Microsecond), by)
	if e.Count > 1 {
		text += fmt.Sprintf(", %d times", e.Count)
	}
	if e.Error != "" {
		text += ": " + e.Error
	}
	return history.LogEntry{Timestamp: e.Time.Unix(), Level: level, Source: "system", Message: history.Text(text)}
}
