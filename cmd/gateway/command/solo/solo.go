// Package solo runs one command of the host under a temporary gateway in this process, for `gateway run`.
package solo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/enclosure"
	"boxgate/enclosure/inside"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/secrets"
)

// Options holds the command, its policy and its environment.
type Options struct {
	Config           config.Config
	Policy           policy.Spec
	Headers          []policy.HeaderRule
	Args             []string
	Sockets          []string // host sockets that the command may reach; absolute, symbolic links resolved
	Hidden           []string // files hidden from the command
	RemovedVariables []string // variables removed from the command's environment
	Stdin            *os.File // standard input of the command; nil: empty
	Quiet            bool     // print denials in the summary only
	Log              *zap.Logger
	Errout           io.Writer // for denials and the summary
}

// Run runs the command and returns its exit status and a record of its traffic. Signals to this process are forwarded to
// the command.
func Run(ctx context.Context, o Options) (int, *Record, error) {
	if err := needStage(); err != nil {
		return 0, nil, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of the denials may exit
	defer signal.Stop(signals)
	process, err := enclosure.Start(o.Stdin) // before the limits of this process are raised
	if err != nil {
		return 0, nil, err
	}
	defer process.Close()
	g, err := open(ctx, o.Config, o.Log)
	if err != nil {
		return 0, nil, err
	}
	defer g.Close()
	box, err := g.attach(ctx, process.PID(), o.Policy, o.Headers)
	if err != nil {
		return 0, nil, err
	}
	spec, err := processSpec(ctx, o, g, box)
	if err != nil {
		return 0, nil, err
	}
	listening, stop := context.WithCancel(ctx)
	defer stop()
	events, err := g.Services().Decisions.FollowEvents(listening, api.EventFilter{Box: box.ID})
	if err != nil {
		return 0, nil, err
	}
	done := newRecord(o, g.addrs.SinkV4, g.addrs.SinkV6)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done.follow(events)
	}()
	process.OnRefused = done.refusedSocket
	if err := process.Run(spec); err != nil {
		return 0, nil, err
	}
	go forwardSignals(process, signals)
	status, err := process.Wait()
	if err != nil {
		return 0, done, err
	}
	err = closeProcess(process, o.Errout)
	if detachErr := g.Services().Life.DetachBox(ctx, box.ID); detachErr != nil && err == nil {
		err = fmt.Errorf("taking the command off the network: %w", detachErr)
	}
	stop()
	<-ended
	return status, done, err
}

// closeProcess kills processes that the command left behind. One that was killed but cannot exit does not change the
// command's status.
func closeProcess(process *enclosure.Process, errout io.Writer) error {
	err := process.Close()
	if errors.Is(err, enclosure.ErrNotEnded) {
		fmt.Fprintf(errout, "gateway: %v\n", err)
		return nil
	}
	return err
}

// forwarded lists the signals forwarded to the command.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGALRM,
}

// forwardSignals forwards signals. Those sent by keys of the terminal already reach a command that shares it.
func forwardSignals(process *enclosure.Process, signals <-chan os.Signal) {
	shared := process.SharesTerminal()
	for s := range signals {
		sig, ok := s.(syscall.Signal)
		keys := sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGWINCH
		if ok && (!shared || !keys) {
			process.Signal(sig)
		}
	}
}

// processSpec returns the specification for the process inside the namespaces.
func processSpec(ctx context.Context, o Options, g *gateway, box api.Box) (inside.Spec, error) {
	user, err := enclosure.CallingUser()
	if err != nil {
		return inside.Spec{}, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return inside.Spec{}, fmt.Errorf("the working directory: %w", err)
	}
	ca, err := g.Services().Authorities.CA(ctx, box.ID)
	if err != nil {
		return inside.Spec{}, err
	}
	env := user.Environment(os.Environ())
	roots, err := bundle(env, o.Config.Proxy.UpstreamCAFiles, ca)
	if err != nil {
		return inside.Spec{}, err
	}
	sockets, err := enclosure.HostSockets()
	if err != nil {
		return inside.Spec{}, err
	}
	set, err := g.Tokens(ctx, box.ID)
	if err != nil {
		return inside.Spec{}, err
	}
	for _, name := range launcher.TrustVariables() {
		set[name] = bundlePath
	}
	return inside.Spec{
		Args: o.Args, Env: withVariables(env, set, removedVariables(o.RemovedVariables)), Dir: dir, UID: user.UID, GID: user.GID, Groups: user.Groups,
		Files: files(roots, g.resolvers()), Hidden: slices.Concat(o.Hidden, secretPaths(o.Config)), Sockets: subtract(sockets, o.Sockets),
		AllowedSockets: o.Sockets, KeepRun: keptPaths, State: stateMount,
	}, nil
}

// keptPaths lists paths of NixOS below /run that do not belong to a daemon.
var keptPaths = []string{"/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/wrappers"}

// subtract returns the paths of list that are not in kept, comparing resolved paths.
func subtract(list, kept []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		at, err := filepath.EvalSymlinks(s)
		return err == nil && slices.Contains(kept, at)
	})
}

// secretPaths returns the operator's files and directories that contain secrets. The configuration file itself may contain
// secrets, too.
func secretPaths(cfg config.Config) []string {
	out := append(secrets.Files(cfg.Secrets.Sources), cfg.StateDir)
	if len(cfg.Secrets.Sources) > 0 {
		out = append(out, cfg.Secrets.File)
	}
	return out
}

// removedVariables returns the variables to remove from the command's environment: the given names and the gateway's own
// variables.
func removedVariables(names []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, config.EnvironmentPrefix) {
			out[name] = true
		}
	}
	return out
}
