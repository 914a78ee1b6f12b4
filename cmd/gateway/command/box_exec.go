package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	session "boxgate/api/session/client"
	"boxgate/cmd/gateway/command/boxes"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/copying"
	"boxgate/cmd/gateway/command/terminal"
)

// boxExec holds the flags of `gateway box exec`.
type boxExec struct {
	o                     *cli.Options
	dir, user             string
	input, useTTY, detach bool
	timeout               time.Duration
	variables             boxes.Variables
}

// newBoxExec is `gateway box exec`.
func newBoxExec(o *cli.Options) *cobra.Command {
	e := boxExec{o: o}
	cmd := &cobra.Command{
		Use:   "exec [-i] [-t] BOX -- COMMAND [ARG...]",
		Short: "Run a command in a box and exit with its status",
		Long: "Run a command in a box and exit with its status.\n\n" +
			"Without -i, the command has no input. With -i, standard input and SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it;\n" +
			"the third signal ends the session and the command. With -t, the command gets a terminal. With --detach, it continues in the box, and\n" +
			"the ID of its run is printed: see `gateway box run`.",
		Example: "  gateway box exec demo --timeout 10m --env CI=1 -- make test\n  gateway box exec demo --detach -- sh -c 'make >build.log 2>&1'",
		Args:    cli.MinArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			return e.run(cmd, client, args[0], args[1:])
		},
	}
	cmd.Flags().StringVar(&e.dir, "dir", "", "working directory (default: the home directory)")
	cmd.Flags().StringVar(&e.user, "user", "", "the box's user by its name, root, UID or UID:GID of the box (default: the box's user)")
	cmd.Flags().BoolVarP(&e.input, "interactive", "i", false, "pass standard input to the command")
	cmd.Flags().BoolVarP(&e.useTTY, "tty", "t", false, "give the command a terminal; requires a terminal here and implies -i")
	cmd.Flags().BoolVar(&e.detach, "detach", false, "do not wait for the command, and print the ID of its run")
	cli.Duration(cmd.Flags(), &e.timeout, "timeout", 0, "how long it may run, such as 30s or 2h, before it is killed; without -i (default: no limit)")
	e.variables.Add(cmd, "for the command")
	cli.MapFields(cmd, map[string]string{"/env": "--env=", "/folder": "--dir", "/user": "--user", "/command": "COMMAND"})
	return cmd
}

// check refuses flags that do not fit together.
func (e *boxExec) check(cmd *cobra.Command) error {
	switch interactive := e.input || e.useTTY; {
	case interactive && e.detach:
		return cli.Usagef("--detach is for commands without -i and -t")
	case interactive && e.timeout != 0:
		return cli.Usagef("--timeout is for commands without -i and -t; in the box, there is `timeout 30s COMMAND`")
	}
	return boxes.CheckTimeout(cmd, e.timeout)
}

func (e *boxExec) run(cmd *cobra.Command, client *api.Client, box string, command []string) error {
	if err := e.check(cmd); err != nil {
		return err
	}
	in := boxes.NewInput(cmd)
	vars, err := e.variables.Map(in)
	if err != nil {
		return err
	}
	if in.Used() && (e.input || e.useTTY) {
		return cli.Usagef("with -i, standard input is for the command, and --env-file needs a file")
	}
	if e.useTTY {
		tty := terminal.Of(cmd.InOrStdin())
		if tty == nil {
			return cli.Usagef("-t needs a terminal, but standard input is not one; use -i alone")
		}
		return runInteractive(cmd, client, box, session.Request{Command: command, Dir: e.dir, User: e.user, Env: pairs(vars)}, tty)
	}
	if e.input {
		return runInteractive(cmd, client, box, session.Request{Command: command, Dir: e.dir, User: e.user, Env: pairs(vars)}, nil)
	}
	req := api.ExecRequest{Command: command, Dir: e.dir, User: e.user, Env: vars, Timeout: e.timeout}
	if e.detach {
		return e.start(cmd, client, box, req)
	}
	return boxes.Ended(cmd.Context())(client.Exec(cmd.Context(), box, req, cmd.OutOrStdout(), cmd.ErrOrStderr()))
}

// start starts a command that continues without this process, and prints its run.
func (e *boxExec) start(cmd *cobra.Command, client *api.Client, box string, req api.ExecRequest) error {
	var answer json.RawMessage
	if err := client.Start(cmd.Context(), box, req, &answer); err != nil {
		return err
	}
	return e.o.Show(cmd, answer, cli.Decoded(func(w io.Writer, run struct{ ID, Status string }) error {
		if run.Status == "failed" { // not an error: whether it fails so early depends on the load
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: the command has failed already; `gateway box run get %s %s` shows it\n", box, run.ID)
		}
		_, err := fmt.Fprintln(w, run.ID)
		return err
	}))
}

// pairs returns variables as NAME=value, in the order of their names.
func pairs(vars map[string]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		list = append(list, name+"="+vars[name])
	}
	return list
}

// exitError turns the outcome of a command into an error.
func exitError(status int, err error) error {
	if err == nil && status != 0 {
		err = cli.CommandExit{Status: status}
	}
	return err
}

// forwarded lists the signals forwarded to the command in the box, with their names in the API.
var forwarded = map[os.Signal]string{syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT"}

// maxForwarded is the number of signals forwarded. The next one ends the session, even if the command reads no input and
// signals no longer reach it.
const maxForwarded = 2

// runInteractive runs a command in a box with the standard streams of this process, in its terminal if tty is not nil.
func runInteractive(cmd *cobra.Command, client *api.Client, box string, req session.Request, tty *terminal.Terminal) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	ctx, end := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer end(nil)
	interrupted := context.AfterFunc(cmd.Context(), func() { end(errors.New("interrupted before the command started")) })
	if tty != nil {
		size := tty.Size()
		req.Terminal = &size
		if kind := os.Getenv("TERM"); kind != "" {
			req.Env = append(req.Env, "TERM="+kind)
		}
	}
	s, err := session.Open(ctx, client, box, req)
	interrupted() // signals now go to the command
	if err != nil {
		return err
	}
	if tty != nil {
		restore, err := tty.Raw()
		if err != nil {
			return err
		}
		defer restore()
		go tty.Follow(ctx, s.Resize)
	}
	go forwardSignals(ctx, end, s, signals, tty != nil)
	go sendStdin(end, s, cmd.InOrStdin())
	return exitError(s.Wait(cmd.OutOrStdout(), cmd.ErrOrStderr()))
}

// forwardSignals forwards the first signals to the command and ends the session on the next one. If the command has a terminal, any
// signal ends the session: keys such as Ctrl-C arrive as input there, so a signal is meant for this process.
func forwardSignals(ctx context.Context, end context.CancelCauseFunc, s *session.Session, signals <-chan os.Signal, tty bool) {
	for n := 0; ; n++ {
		select {
		case sig := <-signals:
			if tty || n == maxForwarded {
				number, _ := sig.(syscall.Signal)
				end(cli.StatusError{Status: 128 + int(number), Err: fmt.Errorf("%s: the session was closed, and the command killed", sig)})
				return
			}
			go func() { _ = s.Signal(forwarded[sig]) }() // may wait behind input that the command does not read
		case <-ctx.Done():
			return
		}
	}
}

// sendStdin sends standard input. A read error ends the session, so that the command does not mistake truncated input for
// complete input.
func sendStdin(end context.CancelCauseFunc, s *session.Session, in io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := s.Write(buf[:n]); err != nil {
				return // Wait returns the reason
			}
		}
		switch {
		case err == io.EOF:
			_ = s.CloseWrite()
			return
		case err != nil:
			end(fmt.Errorf("standard input cannot be read: %w", err))
			return
		}
	}
}

// shell starts a login shell: bash, or sh if the image has no bash.
var shell = []string{"sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -l"}

// newBoxShell is `gateway box shell`.
func newBoxShell(o *cli.Options) *cobra.Command {
	var dir, user string
	cmd := &cobra.Command{
		Use:   "shell BOX",
		Short: "Open a shell in a box and exit with its status",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tty := terminal.Of(cmd.InOrStdin())
			if tty == nil {
				return cli.Usagef("a shell needs a terminal, but standard input is not one; use gateway box exec -i %s -- sh", args[0])
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			return runInteractive(cmd, client, args[0], session.Request{Command: shell, Dir: dir, User: user}, tty)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "working directory (default: the home directory)")
	cmd.Flags().StringVar(&user, "user", "", "the box's user by its name, root, UID or UID:GID of the box (default: the box's user)")
	return cmd
}

// newBoxCopy is `gateway box cp`.
func newBoxCopy(o *cli.Options) *cobra.Command {
	var recursive bool
	var user string
	cmd := &cobra.Command{
		Use:   "cp LOCAL BOX:PATH | BOX:PATH LOCAL",
		Short: "Copy a file into a box or out of one; with -r, a directory",
		Long: "Copy a file into a box or out of one; with -r, a directory.\n\n" +
			"PATH is absolute, or below /workspace/home. If the target is a directory, the file keeps its name. With -r, the contents of the\n" +
			"directory are copied into the target, which is created if necessary. Write a local name with a colon as ./NAME.",
		Args: cli.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := o.Client()
			if err != nil {
				return err
			}
			c := boxCopy{cmd: cmd, client: client, user: user, recursive: recursive, json: o.JSON}
			fromBox, from, out := boxes.Cut(args[0])
			toBox, to, in := boxes.Cut(args[1])
			defer o.Waiting("copying")()
			switch {
			case out && !in:
				return boxes.InBox(fromBox, c.copyOut(fromBox, from, args[1]))
			case in && !out:
				return boxes.InBox(toBox, c.copyIn(args[0], toBox, to))
			}
			return cli.Usagef("one of the two must be BOX:PATH, and the other a local path")
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory with its contents")
	boxes.UserFlag(cmd, &user)
	return cmd
}

// boxCopy is one run of cp.
type boxCopy struct {
	cmd             *cobra.Command
	client          *api.Client
	user            string // of the box; empty: its own
	recursive, json bool
}

// copied is the output of --json.
type copied struct {
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	Skipped int    `json:"skipped,omitempty"`
}

func (c *boxCopy) report(what copied) error {
	if c.json {
		return json.NewEncoder(c.cmd.OutOrStdout()).Encode(what)
	}
	return nil
}

// kind returns the type of a file in the box, or "" if it does not exist.
func (c *boxCopy) kind(box, file string) (string, error) {
	var stat struct{ Type string }
	query := url.Values{"path": {cmp.Or(file, ".")}, "follow": {"true"}}
	err := c.client.Get(c.cmd.Context(), boxes.FilesPath(box, "stat", c.user, query), &stat)
	if refused, ok := errors.AsType[*api.ResponseError](err); ok && refused.Status == http.StatusNotFound {
		return "", nil
	}
	return stat.Type, err
}

// copyIn copies into a box.
func (c *boxCopy) copyIn(local, box, file string) error {
	fi, err := os.Stat(local)
	if err != nil {
		return cli.FileError(err)
	}
	if fi.IsDir() != c.recursive {
		return recursion(local, fi.IsDir())
	}
	if fi.IsDir() {
		return c.tree(local, box, file)
	}
	kind, err := c.kind(box, file)
	if err != nil {
		return err
	}
	if kind == "directory" || file == "" || strings.HasSuffix(file, "/") {
		file = path.Join(file, filepath.Base(local))
	}
	source, err := os.Open(local)
	if err != nil {
		return cli.FileError(err)
	}
	defer source.Close()
	body := copying.Form(file, source)
	defer body.Close()
	if err := c.send(box, "upload", url.Values{}, body.Media, body); err != nil {
		return err
	}
	return c.report(copied{Path: file, Bytes: body.Count()})
}

// tree copies the contents of a local directory.
func (c *boxCopy) tree(local, box, folder string) error {
	body := copying.Pack(local)
	defer body.Close()
	query := url.Values{"folder": {folder}}
	if err := c.send(box, "unpack", query, body.Media, body); err != nil {
		return err
	}
	return c.report(copied{Path: folder, Bytes: body.Count()})
}

func (c *boxCopy) send(box, call string, query url.Values, media string, body io.Reader) error {
	resp, err := c.client.Stream(c.cmd.Context(), http.MethodPost, boxes.FilesPath(box, call, c.user, query), media, body)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// copyOut copies out of a box.
func (c *boxCopy) copyOut(box, file, local string) error {
	kind, err := c.kind(box, file)
	if err == nil && (kind == "directory") != c.recursive && kind != "" {
		err = recursion(file, kind == "directory")
	}
	if err != nil {
		return err
	}
	query := url.Values{"folder": {file}}
	resp, err := c.client.Stream(c.cmd.Context(), http.MethodGet, boxes.FilesPath(box, "download", c.user, query), "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if c.recursive {
		return c.unpack(resp, local)
	}
	if fi, err := os.Stat(local); err == nil && fi.IsDir() {
		local = filepath.Join(local, path.Base(file))
	}
	n, err := copying.Save(local, resp.Body)
	if err != nil {
		return cli.WriteError(local, err)
	}
	return c.report(copied{Path: local, Bytes: n})
}

// unpack extracts an archive sent by a box.
func (c *boxCopy) unpack(resp *http.Response, local string) error {
	n, err := copying.Unpack(local, resp.Body)
	if err != nil {
		return err
	}
	skipped, _ := strconv.Atoi(resp.Trailer.Get(api.SkippedTrailer))
	if err := c.report(copied{Path: local, Bytes: n, Skipped: skipped}); err != nil {
		return err
	}
	if skipped > 0 {
		return fmt.Errorf("not copied: %s of the box, which cannot be read or are neither files, directories nor symbolic links", cli.Count(skipped, "file", "files"))
	}
	return nil
}

func recursion(name string, isDir bool) error {
	if isDir {
		return cli.Usagef("%s is a directory; copy it with -r", name)
	}
	return cli.Usagef("%s is not a directory; copy it without -r", name)
}
