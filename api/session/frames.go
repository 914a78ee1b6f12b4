package session

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/strict"
)

// fromClient is a frame from the client. Its type determines which fields are set.
type fromClient struct {
	Type string `json:"type"`

	Argv     []string `json:"argv,omitempty"`     // start: program and arguments
	Cmd      string   `json:"cmd,omitempty"`      // start: a command line for a login shell, if argv is empty
	TTY      bool     `json:"tty,omitempty"`      // start
	Cwd      string   `json:"cwd,omitempty"`      // start
	Env      []string `json:"env,omitempty"`      // start: NAME=value
	Reattach bool     `json:"reattach,omitempty"` // start: the client acknowledges output and may reconnect
	AckInput bool     `json:"ackInput,omitempty"` // start: acknowledge input, as with reattach

	Rows    *int64 `json:"rows,omitempty"`    // start and resize
	Cols    *int64 `json:"cols,omitempty"`    // start and resize
	Data    string `json:"data,omitempty"`    // stdin: base64
	Signal  string `json:"signal,omitempty"`  // signal
	GraceMS *int64 `json:"graceMs,omitempty"` // terminate
	Offset  int64  `json:"offset,omitempty"`  // ack: bytes of output received
}

// toClient is a frame from the gateway.
type toClient struct {
	Type    string `json:"type"`
	Pid     int    `json:"pid,omitempty"`
	ExecID  string `json:"execId,omitempty"`
	Data    []byte `json:"data,omitempty"`
	Code    *int   `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Offset is the number of input bytes accepted, in attached and ack frames, for a client that may reconnect.
	Offset int64 `json:"offset,omitempty"`
}

// parseFrame parses a frame from the client.
func parseFrame(data []byte) (fromClient, error) {
	var f fromClient
	err := strict.Unmarshal(data, &f)
	return f, err
}

// loginShell runs a command line in a login shell: bash, or sh if the image has no bash.
var loginShell = []string{"sh", "-c", `command -v bash >/dev/null && exec bash -lc "$1"; exec sh -lc "$1"`, "sh"}

// request converts a start frame into a request and the prompt for the history.
func (f *fromClient) request() (api.SessionRequest, string, error) {
	var p problem.List
	req := api.SessionRequest{Command: f.Argv, Dir: path.Clean(f.Cwd)}
	prompt := strings.Join(f.Argv, " ")
	if len(f.Argv) == 0 {
		req.Command, prompt = append(slices.Clone(loginShell), f.Cmd), f.Cmd
	}
	if f.Type != "start" {
		p.Add("/type", "must be start in the first frame")
	}
	if len(f.Argv) == 0 && f.Cmd == "" || len(f.Argv) > 0 && f.Argv[0] == "" {
		p.Add("/argv", "must name a program, unless cmd has a line for a shell")
	}
	if !path.IsAbs(req.Dir) {
		req.Dir = path.Join(api.Workspace, req.Dir)
	}
	checkStrings(&p, req.Command, f.Cwd)
	req.Env = f.environment(&p)
	if f.TTY {
		req.Terminal = &api.TerminalSize{Rows: f.dimension(&p, "/rows", f.Rows, 24), Cols: f.dimension(&p, "/cols", f.Cols, 80)}
	}
	return req, prompt, p.Err()
}

// checkStrings refuses arguments and directories that execve would reject.
func checkStrings(p *problem.List, argv []string, dir string) {
	sum := 0
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) || len(arg) > api.MaxArgument {
			p.Add("/argv", "has an argument with NUL or of more than %d bytes", api.MaxArgument)
			return
		}
		sum += len(arg) + api.ArgumentCost
	}
	if sum > api.MaxArguments {
		p.Add("/argv", "needs %d bytes; the limit is %d", sum, api.MaxArguments)
	}
	if strings.ContainsRune(dir, 0) || len(dir) > 4095 {
		p.Add("/cwd", "is not a path")
	}
}

// environment returns the variables of a start frame. As in the dialect, variables of the dynamic linker are dropped.
func (f *fromClient) environment(p *problem.List) map[string]string {
	env, sum := map[string]string{}, 0
	for _, entry := range f.Env {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.ContainsRune(entry, 0) || len(entry) > api.MaxArgument {
			p.Add("/env", "must have entries of the form NAME=value")
			return nil
		}
		if sum += len(entry) + api.ArgumentCost; sum > api.MaxEnvironment/4 {
			p.Add("/env", "is larger than %d bytes", api.MaxEnvironment/4)
			return nil
		}
		env[name] = value
	}
	maps.DeleteFunc(env, func(name, _ string) bool { return strings.HasPrefix(name, "LD_") })
	return env
}

// maxDimension bounds the size of a terminal, because programs allocate memory in proportion to it.
const maxDimension = 4096

func (f *fromClient) dimension(p *problem.List, pointer string, n *int64, absent uint16) uint16 {
	switch {
	case n == nil:
		return absent
	case *n < 1 || *n > maxDimension:
		p.Add(pointer, "must be between 1 and %d", maxDimension)
		return absent
	}
	return uint16(*n)
}

// The grace between SIGTERM and SIGKILL.
const (
	defaultGrace = 10 * time.Second
	maxGrace     = 10 * time.Minute
)

func (f *fromClient) grace() time.Duration {
	if f.GraceMS == nil || *f.GraceMS <= 0 {
		return defaultGrace
	}
	if *f.GraceMS > maxGrace.Milliseconds() {
		return maxGrace
	}
	return time.Duration(*f.GraceMS) * time.Millisecond
}
