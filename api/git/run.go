package git

import (
	"context"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// workspace is the directory that folders are below.
const workspace = "/workspace/home"

// repository is a directory of a box in which commands are run.
type repository struct {
	e   *Endpoints
	ctx context.Context
	box policy.BoxID
	dir string
}

// in finds the box that a request names, and a folder of it.
func (e *Endpoints) in(r *http.Request, folder string) (repository, error) {
	box, err := rest.Box(r, e.Host)
	if err != nil {
		return repository{}, err
	}
	if strings.ContainsRune(folder, 0) || len(folder) > 4095 {
		return repository{}, problem.Invalid("/folder", "is not a path")
	}
	dir := path.Clean(folder)
	if !path.IsAbs(dir) {
		dir = path.Join(workspace, dir)
	}
	return repository{e, r.Context(), box.ID, dir}, nil
}

// printed is what a command has printed, up to a limit, and how it ended.
type printed struct {
	out, err  string
	status    int
	truncated bool
}

// run runs a program.
func (g repository) run(stdin io.Reader, args ...string) (printed, error) {
	out, errs := &capture{most: g.e.MaxOutput}, &capture{most: g.e.MaxOutput}
	res, err := g.e.Host.Exec(g.ctx, g.box, api.ExecRequest{Command: args, Dir: g.dir, Stdin: stdin}, out, errs)
	if err == nil && res.ExitCode == notStarted {
		err = g.mustExist()
	}
	return printed{out.text(), errs.text(), res.ExitCode, out.cut || errs.cut}, err
}

// notStarted is the status of a program that could not be started, because it or its directory is not there.
const notStarted = 127

// mustExist refuses a folder that the box does not have.
func (g repository) mustExist() error {
	there := api.ExecRequest{Command: []string{"test", "-d", g.dir}, Dir: "/"}
	res, err := g.e.Host.Exec(g.ctx, g.box, there, io.Discard, io.Discard)
	if err == nil && res.ExitCode == 1 {
		err = problem.Invalid("/folder", "the box has no directory %q", problem.Clip(g.dir))
	}
	return err
}

// git runs git. The protocol ext, which is a command, is refused whatever the box's configuration allows.
func (g repository) git(args ...string) (printed, error) {
	return g.run(nil, append([]string{"git", "-c", "protocol.ext.allow=never", "-c", "core.quotePath=false"}, args...)...)
}

// must is git for a command that has to succeed.
func (g repository) must(args ...string) (printed, error) {
	p, err := g.git(args...)
	if err == nil && p.status != 0 {
		err = p.failure("git " + args[0])
	}
	return p, err
}

// failure is the answer for a command that failed: the end of what it said.
func (p printed) failure(what string) error {
	text := strings.TrimSpace(p.err)
	if text == "" {
		text = strings.TrimSpace(p.out)
	}
	if most := 2000; len(text) > most {
		text = strings.ToValidUTF8("…"+text[len(text)-most:], "")
	}
	if p.status == notStarted {
		return api.Errorf(api.ErrConflict, "%s cannot be run, the image of the box may lack it: %s", what, text)
	}
	return problem.Refuse(http.StatusUnprocessableEntity, "%s failed with exit code %d: %s", what, p.status, text)
}

// capture keeps the first bytes of a stream and discards the rest.
type capture struct {
	most int
	mu   sync.Mutex
	buf  []byte
	cut  bool
}

func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.most - len(c.buf)
	c.buf = append(c.buf, b[:min(room, len(b))]...)
	c.cut = c.cut || len(b) > room
	return len(b), nil
}

func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.ToValidUTF8(string(c.buf), "\uFFFD")
}
