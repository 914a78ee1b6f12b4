package boxes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// processAnswer is a process as the API returns it.
type processAnswer struct {
	Pid      int      `json:"pid"`
	Tag      string   `json:"tag"`
	Command  []string `json:"command"`
	User     string   `json:"user"`
	Terminal bool     `json:"terminal"`
	Input    bool     `json:"input"`
	Begun    string   `json:"started_at"`
}

// newProcesses is `gateway box ps`.
func newProcesses(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "ps BOX", Short: "List the processes of a box that `gateway box process` or other clients have started", Args: cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "GET", api.BoxPath(args[0], "processes"), nil, cli.Decoded(printProcesses))
		},
	}
}

func printProcesses(w io.Writer, list struct{ Processes []processAnswer }) error {
	rows := [][]string{{"PID", "TAG", "USER", "STARTED", "TERMINAL", "COMMAND"}}
	for _, p := range list.Processes {
		tty := "-"
		if p.Terminal {
			tty = "yes"
		}
		rows = append(rows, []string{strconv.Itoa(p.Pid), word(p.Tag), word(p.User), word(p.Begun), tty, word(strings.Join(p.Command, " "))})
	}
	return cli.Table(w, rows...)
}

// newProcess is `gateway box process`.
func newProcess(o *cli.Options) *cobra.Command {
	cmd := cli.Group("process", "Start, attach to and end processes of a box that several clients share")
	cmd.AddCommand(newProcessStart(o), newProcessAttach(o), newProcessSignal(o))
	return cmd
}

// processBody is the request of a process.
type processBody struct {
	Command  []string          `json:"command"`
	Folder   string            `json:"folder,omitempty"`
	User     string            `json:"user,omitempty"`
	Tag      string            `json:"tag,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Timeout  int64             `json:"timeout,omitempty"`
	Input    bool              `json:"input,omitempty"`
	Terminal *processSize      `json:"terminal,omitempty"`
}

type processSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

func newProcessStart(o *cli.Options) *cobra.Command {
	var body processBody
	var tty bool
	var timeout time.Duration
	var variables Variables
	cmd := &cobra.Command{
		Use: "start [-i] [-t] BOX -- COMMAND [ARG...]", Short: "Start a process that goes on without this command, and print its PID", Args: cli.MinArgs(2),
		Long: "Start a process that goes on without this command, and print its PID. It ends with the API key that has started it.\n" +
			"`gateway box process attach` follows it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := CheckTimeout(cmd, timeout); err != nil {
				return err
			}
			vars, err := variables.Map(NewInput(cmd))
			if err != nil {
				return err
			}
			body.Command, body.Env, body.Timeout = args[1:], vars, milliseconds(timeout)
			if tty {
				body.Terminal = &processSize{24, 80}
			}
			return o.Call(cmd, "POST", api.BoxPath(args[0], "processes"), body, cli.Decoded(func(w io.Writer, p processAnswer) error {
				_, err := fmt.Fprintln(w, p.Pid)
				return err
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&body.Folder, "dir", "", "working directory (default: the home directory)")
	f.StringVar(&body.User, "user", "", "the box's user by its name, root, UID or UID:GID of the box (default: the box's user)")
	f.StringVar(&body.Tag, "tag", "", "a name for the process")
	f.BoolVarP(&body.Input, "interactive", "i", false, "the process takes input")
	f.BoolVarP(&tty, "tty", "t", false, "give the process a terminal; implies -i")
	cli.Duration(f, &timeout, "timeout", 0, "how long it may run, such as 30s or 2h, before it is killed (default: no limit)")
	variables.Add(cmd, "for the process")
	cli.MapFields(cmd, map[string]string{"/env": "--env=", "/folder": "--dir", "/user": "--user", "/command": "COMMAND", "/tag": "--tag"})
	return cmd
}

func newProcessSignal(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "signal BOX PID SIGNAL", Short: "Send a signal to a process and all it started: TERM, KILL, INT, HUP, TSTP, QUIT, USR1 or USR2", Args: cli.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := pidOf(args[1])
			if err != nil {
				return err
			}
			body := map[string]string{"signal": strings.TrimPrefix(strings.ToUpper(args[2]), "SIG")}
			return o.Call(cmd, "POST", processPath(args[0], pid, "signal"), body, cli.Silent)
		},
	}
	cli.MapFields(cmd, map[string]string{"/signal": "SIGNAL"})
	return cmd
}

func processPath(box string, pid int, below string) string {
	return api.BoxPath(box, "processes", strconv.Itoa(pid), below)
}

// pidOf parses the ID of a process.
func pidOf(text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 {
		return 0, cli.Usagef("%q is not a PID; `gateway box ps` lists them", text)
	}
	return pid, nil
}

// detachKey is the byte of the key that leaves a process with a terminal: Ctrl-].
const detachKey = 0x1d

var errDetached = errors.New("detached; the process goes on")

func newProcessAttach(o *cli.Options) *cobra.Command {
	var input bool
	cmd := &cobra.Command{
		Use: "attach [-i] BOX PID", Short: "Print the output of a process from now on, and exit with its status", Args: cli.ExactArgs(2),
		Long: "Print the output of a process from now on, and exit with its status. The process goes on when this command ends.\n\n" +
			"With -i, standard input goes to the process, and its end too. If the process has a terminal and standard input is one, keys such as\n" +
			"^C go to the process, and Ctrl-] leaves it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := pidOf(args[1])
			if err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			a := processAttachment{client: client, box: args[0], pid: pid}
			if !input {
				return Ended(cmd.Context())(client.Attach(cmd.Context(), a.box, pid, cmd.OutOrStdout(), cmd.ErrOrStderr()))
			}
			return a.run(cmd)
		},
	}
	cmd.Flags().BoolVarP(&input, "interactive", "i", false, "pass standard input to the process")
	return cmd
}

// processAttachment is a process that standard input goes to.
type processAttachment struct {
	client *api.Client
	box    string
	pid    int
}

func (a processAttachment) run(cmd *cobra.Command) error {
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	var list struct{ Processes []processAnswer }
	if err := a.client.Get(ctx, api.BoxPath(a.box, "processes"), &list); err != nil {
		return err
	}
	tty := false
	for _, p := range list.Processes {
		tty = tty || p.Pid == a.pid && p.Terminal
	}
	var own *terminal.Terminal
	if tty {
		own = terminal.Of(cmd.InOrStdin())
	}
	if own != nil {
		restore, err := own.Raw()
		if err != nil {
			return err
		}
		defer restore()
		go own.Follow(ctx, func(s api.TerminalSize) error {
			return a.client.Do(ctx, http.MethodPost, processPath(a.box, a.pid, "resize"), processSize(s), nil)
		})
	}
	go func() {
		if err := a.feed(ctx, cmd.InOrStdin(), tty, own != nil); err != nil {
			end(err)
		}
	}()
	code, err := a.client.Attach(ctx, a.box, a.pid, cmd.OutOrStdout(), cmd.ErrOrStderr())
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errDetached) {
		fmt.Fprintf(cmd.ErrOrStderr(), "\r\n%v\r\n", cause)
		return nil
	} else if err != nil && cause != nil {
		err = cause
	}
	return Ended(cmd.Context())(code, err)
}

// feed passes input on to the process until it ends.
func (a processAttachment) feed(ctx context.Context, in io.Reader, tty, raw bool) error {
	type message struct {
		Data []byte `json:"data,omitempty"`
		End  bool   `json:"end,omitempty"`
	}
	post := func(m message) error {
		return a.client.Do(ctx, http.MethodPost, processPath(a.box, a.pid, "input"), m, nil)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		data, left := buf[:n], false
		if raw {
			data, _, left = bytes.Cut(data, []byte{detachKey})
		}
		if len(data) > 0 {
			if err := post(message{Data: data}); err != nil {
				return err
			}
		}
		switch {
		case left:
			return errDetached
		case errors.Is(err, io.EOF) && tty:
			return nil
		case errors.Is(err, io.EOF):
			return post(message{End: true})
		case err != nil:
			return fmt.Errorf("standard input cannot be read: %w", err)
		}
	}
}
