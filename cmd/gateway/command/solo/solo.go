// Package solo runs one command of the host under a gateway of its own, in this process: `gateway run`.
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

// Options say what to run, and under what.
type Options struct {
	Config  config.Config
	Policy  policy.Spec
	Headers []policy.HeaderRule
	Args    []string
	Reach   []string // sockets that the command may reach, absolute and without links
	Hidden  []string // files that the command must not read
	Without []string // variables that the command must not have
	Stdin   *os.File // the command's; nil: it reads nothing
	Quiet   bool     // denials are in the summary alone
	Log     *zap.Logger
	Errout  io.Writer // for denials and the summary
}

// Run runs the command and returns its exit status and what it did. Signals that this process gets are the command's.
func Run(ctx context.Context, o Options) (int, *Record, error) {
	if err := needStage(); err != nil {
		return 0, nil, err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // who reads the denials may go
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
	spec, err := describe(ctx, o, g, box)
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
		for e := range events.Events() {
			done.note(e)
		}
		done.lost = events.Lost()
	}()
	process.Refused = done.refusedSocket
	if err := process.Run(spec); err != nil {
		return 0, nil, err
	}
	go pass(process, signals)
	status, err := process.Wait()
	if err != nil {
		return 0, done, err
	}
	err = closeLeft(process, o.Errout)
	if gone := g.Services().Life.DetachBox(ctx, box.ID); gone != nil && err == nil {
		err = fmt.Errorf("taking the command off the network: %w", gone)
	}
	stop()
	<-ended
	return status, done, err
}

// closeLeft kills what the command has left running. What was killed but cannot end changes nothing about the command's status.
func closeLeft(process *enclosure.Process, errout io.Writer) error {
	err := process.Close()
	if errors.Is(err, enclosure.ErrNotEnded) {
		fmt.Fprintf(errout, "gateway: %v\n", err)
		return nil
	}
	return err
}

// passedOn are the signals that are the command's.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGALRM,
}

// pass passes signals on. Those of a terminal's keys reach a command that shares the terminal by themselves.
func pass(process *enclosure.Process, signals <-chan os.Signal) {
	shared := process.SharesTerminal()
	for s := range signals {
		sig, ok := s.(syscall.Signal)
		keys := sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGWINCH
		if ok && (!shared || !keys) {
			process.Signal(sig)
		}
	}
}

// describe is what the process inside is to do.
func describe(ctx context.Context, o Options, g *gateway, box api.Box) (inside.Spec, error) {
	user, err := enclosure.Caller()
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
		Args: o.Args, Env: withVariables(env, set, without(o.Without)), Dir: dir, UID: user.UID, GID: user.GID, Groups: user.Groups,
		Files: files(roots, g.resolvers()), Hidden: slices.Concat(o.Hidden, configured(o.Config)), Sockets: except(sockets, o.Reach),
		Reach: o.Reach, Keep: systemParts, State: stateMount,
	}, nil
}

// systemParts are what NixOS has below /run that is no daemon's.
var systemParts = []string{"/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/wrappers"}

// except returns what is not kept, whatever links lead to it.
func except(list, kept []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		at, err := filepath.EvalSymlinks(s)
		return err == nil && slices.Contains(kept, at)
	})
}

// configured are the files and directories of the operator with secrets. The configuration may have values of its own.
func configured(cfg config.Config) []string {
	out := append(secrets.Files(cfg.Secrets.Sources), cfg.StateDir)
	if len(cfg.Secrets.Sources) > 0 {
		out = append(out, cfg.Secrets.File)
	}
	return out
}

// without are variables that the command does not get: those that it must not have, and the gateway's own.
func without(names []string) map[string]bool {
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
