package git

import (
	"context"
	"io"
	"net/http"
	"path"
	"strings"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// repository is a directory in a box, to run commands in.
type repository struct {
	e   *Endpoints
	ctx context.Context
	box policy.BoxID
	dir string
	// answer holds the output of the last command.
	answer *capture.Answer
}

// open returns a folder of the box in the path of a request.
func (e *Endpoints) open(r *http.Request, folder string) (repository, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return repository{}, err
	}
	if strings.ContainsRune(folder, 0) || len(folder) > 4095 {
		return repository{}, problem.Invalid("/folder", "is not a path")
	}
	dir := path.Clean(folder)
	if !path.IsAbs(dir) {
		dir = path.Join(api.Workspace, dir)
	}
	answer, err := e.Output.Open(r.Context(), box.ID)
	return repository{e, r.Context(), box.ID, dir, answer}, err
}

// result is the output of a command, up to a limit, with its exit code.
type result struct {
	out, err  string
	status    int
	truncated bool
}

// run runs a program in the directory.
func (g repository) run(stdin io.Reader, args ...string) (result, error) {
	g.answer.Clear()
	out, errs := g.answer.Output(g.e.MaxOutput), g.answer.Output(g.e.MaxOutput)
	res, err := g.e.Commands.Exec(g.ctx, g.box, api.ExecRequest{Command: args, Dir: g.dir, Stdin: stdin}, out, errs)
	if err == nil && res.ExitCode == notStarted {
		err = g.mustExist()
	}
	return result{out.Text(), errs.Text(), res.ExitCode, out.Cut() || errs.Cut()}, err
}

// notStarted is the exit code of a program that could not be started because it or its directory does not exist.
const notStarted = 127

// mustExist returns an error if the directory does not exist in the box.
func (g repository) mustExist() error {
	there := api.ExecRequest{Command: []string{"test", "-d", g.dir}, Dir: "/"}
	res, err := g.e.Commands.Exec(g.ctx, g.box, there, io.Discard, io.Discard)
	if err == nil && res.ExitCode == 1 {
		err = problem.Invalid("/folder", "the box has no directory %q", problem.Clip(g.dir))
	}
	return err
}

// git runs git. The protocol ext, which runs a command, is disabled whatever the box's configuration allows.
func (g repository) git(args ...string) (result, error) {
	return g.run(nil, append([]string{"git", "-c", "protocol.ext.allow=never", "-c", "core.quotePath=false"}, args...)...)
}

// must runs git and returns an error if it fails.
func (g repository) must(args ...string) (result, error) {
	p, err := g.git(args...)
	if err == nil && p.status != 0 {
		err = p.failure("git " + args[0])
	}
	return p, err
}

// failure returns the error for a failed command, with the end of its output.
func (p result) failure(what string) error {
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
