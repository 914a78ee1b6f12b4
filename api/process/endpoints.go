package process

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/stream"
	"boxgate/api/strict"
)

// Endpoints serves processes.
type Endpoints struct {
	Boxes     rest.Finder
	Processes *Service
	Bodies    strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/box/{id}/processes", ID: "listProcesses", Summary: "The running processes that were started as such, oldest first", Response: reflect.TypeFor[processesView](), Handle: e.list},
		{Method: "POST", Path: "/v2/box/{id}/processes", ID: "startProcess", Summary: "Start a process that other calls can read, feed and end", Status: 201,
			Request: reflect.TypeFor[processBody](), Example: `{"command":["python3","-i"],"input":true,"tag":"repl"}`, Response: reflect.TypeFor[View](), Handle: e.start},
		{Method: "GET", Path: "/v2/box/{id}/processes/{pid}/output", ID: "readProcess", Summary: "Stream the output of a process from now on, then its exit, in the frames of exec-stream",
			Produces: []string{stream.NDJSON}, Items: []reflect.Type{reflect.TypeFor[stream.Frame]()}, Handle: e.read},
		{Method: "POST", Path: "/v2/box/{id}/processes/{pid}/input", ID: "writeProcess", Summary: "Write the input of a process; waits until the process has read all but the last 64 KiB",
			Request: reflect.TypeFor[processInputBody](), Example: `{"data":"cHJpbnQoMSkK"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.write},
		{Method: "POST", Path: "/v2/box/{id}/processes/{pid}/signal", ID: "signalProcess", Summary: "Send a signal to a process and its descendants",
			Request: reflect.TypeFor[processSignalBody](), Example: `{"signal":"TERM"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.signal},
		{Method: "POST", Path: "/v2/box/{id}/processes/{pid}/resize", ID: "resizeProcess", Summary: "Set the size of the terminal of a process",
			Request: reflect.TypeFor[terminalBody](), Example: `{"rows":40,"cols":120}`, Response: reflect.TypeFor[rest.OK](), Handle: e.resize},
	}
}

// View describes a process.
type View struct {
	Pid      int      `json:"pid" doc:"its ID in the box" example:"42"`
	Tag      string   `json:"tag,omitempty"`
	Command  []string `json:"command" doc:"program and arguments"`
	Folder   string   `json:"folder" doc:"working directory" example:"/workspace/home"`
	User     string   `json:"user,omitempty" doc:"absent: the box's ordinary user"`
	Terminal bool     `json:"terminal,omitempty" doc:"it has a terminal"`
	Input    bool     `json:"input,omitempty" doc:"it takes input"`
	Begun    string   `json:"started_at" format:"date-time"`
	Key      string   `json:"key,omitempty" doc:"ID of the API key that started it; the process ends with the key"`
	RunID    string   `json:"run_id" doc:"its run in the history of the box"`
}

// SchemaName names the type in the description of the API.
func (View) SchemaName() string { return "processView" }

type processesView struct {
	Processes []View `json:"processes"`
}

func viewOf(p *Process) View {
	req := p.Request()
	return View{
		Pid: p.Pid(), Tag: p.Tag(), Command: req.Command, Folder: req.Dir, User: req.User, Terminal: req.Terminal != nil, Input: req.Input,
		Begun: p.Begun().UTC().Format(time.RFC3339), Key: p.Starter().Key, RunID: p.Run(),
	}
}

func (e *Endpoints) list(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	view := processesView{Processes: []View{}}
	for _, p := range e.Processes.List(box.ID) {
		if v := viewOf(p); len(v.Command) > 0 { // otherwise it has just ended
			view.Processes = append(view.Processes, v)
		}
	}
	return rest.Reply{Body: view}, nil
}

// processBody is a process to start.
type processBody struct {
	Command  []string          `json:"command" doc:"program and arguments; executed without a shell" min:"1" example:"[\"python3\",\"-i\"]"`
	Folder   string            `json:"folder,omitempty" doc:"working directory, absolute or below the home directory"`
	Timeout  *int64            `json:"timeout,omitempty" doc:"milliseconds after which the process is killed; absent: never" min:"1" max:"604800000" example:"30000"`
	User     string            `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
	Env      map[string]string `json:"env,omitempty" doc:"variables besides those of the box; never returned" example:"{\"CI\":\"1\"}"`
	Tag      string            `json:"tag,omitempty" doc:"a name, of at most 256 bytes; need not be unique" example:"repl"`
	Input    bool              `json:"input,omitempty" doc:"the process takes input; absent: its input is empty. One with a terminal always takes input"`
	Terminal *terminalBody     `json:"terminal,omitempty" doc:"give the process a terminal of this size"`
}

// terminalBody is the size of a terminal.
type terminalBody struct {
	Rows int64 `json:"rows" min:"1" max:"4096" example:"24"`
	Cols int64 `json:"cols" min:"1" max:"4096" example:"80"`
}

// maxTimeout is the maximum timeout in milliseconds: a week.
const maxTimeout = 7 * 24 * 3600 * 1000

func (b *processBody) request(box api.Box) (Request, error) {
	var p problem.List
	req := Request{Tag: b.Tag, Input: b.Input || b.Terminal != nil, Prompt: strings.Join(b.Command, " ")}
	spec.Command(&p, "/command", b.Command)
	spec.Environment(&p, "/env", b.Env)
	req.Command, req.Env = b.Command, b.Env
	req.Dir, req.User = spec.Folder(&p, "/folder", box.HomeDir(), b.Folder), spec.User(&p, "/user", box.UserName(), b.User)
	if b.Timeout != nil {
		if *b.Timeout < 1 || *b.Timeout > maxTimeout {
			p.Add("/timeout", "must be between 1 and %d milliseconds", maxTimeout)
		}
		req.Timeout = time.Duration(*b.Timeout) * time.Millisecond
	}
	if b.Terminal != nil {
		size := spec.Terminal(&p, "/terminal", b.Terminal.Rows, b.Terminal.Cols)
		req.Terminal = &size
	}
	return req, p.Err()
}

func (e *Endpoints) start(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body processBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request(box)
	if err != nil {
		return rest.Reply{}, err
	}
	p, out, err := e.Processes.Start(r.Context(), box.ID, req)
	if err != nil {
		return rest.Reply{}, err
	}
	out.Close()
	view := viewOf(p)
	view.Command, view.Folder, view.User = req.Command, req.Dir, req.User // it may have ended
	view.Terminal, view.Input = req.Terminal != nil, req.Input
	change := &rest.Change{Box: box.ID, What: map[string]any{"pid": p.Pid(), "run": p.Run()}}
	return rest.Reply{Status: http.StatusCreated, Body: view, Change: change}, nil
}

// find finds the process in the path of a request, and the box.
func (e *Endpoints) find(r *http.Request) (*Process, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(r.PathValue("pid"))
	if err != nil {
		return nil, api.Errorf(api.ErrNotFound, "%q is not the ID of a process", problem.Clip(r.PathValue("pid")))
	}
	return e.Processes.Find(box.ID, pid)
}

func (e *Endpoints) read(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	p, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	out, err := p.Attach(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	defer out.Close()
	paced := rest.BeginPaced(w, stream.NDJSON)
	defer paced.Close()
	err = paced.Flush()
	for err == nil {
		var chunk Chunk
		if chunk, err = out.Next(r.Context()); err == nil {
			err = writeFrame(paced, stream.Frame{Stream: chunk.Stream, Data: chunk.Data})
		}
	}
	if errors.Is(err, io.EOF) {
		var exit Exit
		if exit, err = p.Exit(r.Context()); err == nil && exit.Err == nil {
			_ = writeFrame(paced, stream.Frame{ExitCode: &exit.Code})
			return rest.Reply{Written: true}, nil
		}
		if err == nil {
			err = exit.Err
		}
	}
	if !errors.Is(err, context.Canceled) {
		_, body := problem.StatusOf(err)
		_ = writeFrame(paced, stream.Frame{Error: body.Error})
	}
	return rest.Reply{Written: true}, nil
}

func writeFrame(w *rest.Paced, frame stream.Frame) error {
	line, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return w.Flush()
}

// processInputBody is input of a process.
type processInputBody struct {
	Data string `json:"data,omitempty" doc:"base64" format:"byte" example:"cHJpbnQoMSkK"`
	End  bool   `json:"end,omitempty" doc:"close the input after data; not for a terminal, which ends its input at byte 4"`
}

func (e *Endpoints) write(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	p, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var body processInputBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	data, err := base64.StdEncoding.DecodeString(body.Data)
	if err != nil {
		return rest.Reply{}, problem.Invalid("/data", "is not base64 (RFC 4648, section 4)")
	}
	if body.End && p.Request().Terminal != nil {
		return rest.Reply{}, problem.Invalid("/end", "is not for a terminal; send byte 4 instead")
	}
	if err := p.Write(r.Context(), data); err != nil {
		return rest.Reply{}, err
	}
	if body.End {
		err = p.CloseInput()
	}
	return rest.Done(), err
}

type processSignalBody struct {
	Signal string `json:"signal" enum:"TERM KILL INT HUP TSTP QUIT USR1 USR2"`
}

func (e *Endpoints) signal(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	p, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var body processSignalBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if err := p.Signal(body.Signal); err != nil {
		return rest.Reply{}, err
	}
	return rest.DoneWith(p.box, map[string]any{"pid": p.Pid(), "signal": body.Signal}), nil
}

func (e *Endpoints) resize(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	p, err := e.find(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var body terminalBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var list problem.List
	size := spec.Terminal(&list, "", body.Rows, body.Cols)
	if err := list.Err(); err != nil {
		return rest.Reply{}, err
	}
	return rest.Done(), p.Resize(size)
}
