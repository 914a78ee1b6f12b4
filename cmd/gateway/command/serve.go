package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/config"
	"boxgate/host"
	"boxgate/host/handover"
	"boxgate/host/listen"
	"boxgate/host/systemd"
	"boxgate/store"
)

// newServeCommand is `gateway serve`.
func newServeCommand(o *cli.Options) *cobra.Command {
	var untilEOF, noWatch bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in the foreground",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			kept := systemd.Kept() // first, because anything started earlier could inherit the descriptors
			ctx := cmd.Context()
			if untilEOF {
				ctx = endsWithInput(ctx, cmd.InOrStdin())
			}
			onTerminal := terminal.IsOne(os.Stderr)
			so := serveOptions{noWatch: noWatch, greeting: onTerminal, file: o.File(), environ: environWithout(os.Environ()), kept: kept}
			var err error
			if so.predecessor, err = predecessor(); err != nil {
				return err
			}
			if err = serveWith(ctx, so); err != nil && so.predecessor != nil {
				so.predecessor.Fail(err)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends")
	_ = cmd.Flags().MarkHidden("until-eof")
	cmd.Flags().BoolVar(&noWatch, "no-watch", false, "do not restore kernel rules that other programs change (for tests)")
	_ = cmd.Flags().MarkHidden("no-watch")
	return cmd
}

// endsWithInput returns a context that ends with r, so that a gateway started by a demo or a test does not outlive it.
func endsWithInput(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx
}

// serveOptions holds the settings of a run that are not in the configuration.
type serveOptions struct {
	noWatch     bool     // do not restore kernel rules that other programs change
	greeting    bool     // print the greeting once ready
	file        string   // the configuration file, if any
	environ     []string // environment of this process at its start
	text        []byte   // contents of the configuration file
	predecessor *handover.Predecessor
	kept        map[string]*os.File // sockets kept from an earlier run
}

// serveWith reads the configuration and serves. A process that replaces another one running the same program receives the
// configuration that its predecessor read.
func serveWith(ctx context.Context, opts serveOptions) error {
	var err error
	given := false
	if opts.predecessor != nil {
		opts.text, given = opts.predecessor.Config()
	}
	if !given {
		if opts.text, err = config.ReadFile(opts.file); err != nil {
			return err
		}
	}
	cfg, err := opts.parse(opts.text)
	if err != nil {
		return err
	}
	return serve(ctx, cfg, opts)
}

// parse parses a configuration.
func (o serveOptions) parse(text []byte) (config.Config, error) {
	cfg, err := config.Parse(o.file, text, o.environ)
	if cfg.Log.Format == "auto" {
		cfg.Log.Format = "json"
		if o.greeting {
			cfg.Log.Format = "console"
		}
	}
	return cfg, err
}

// serve runs the gateway until ctx ends. It first checks the host and opens its sockets, so that their problems are
// reported before anything is changed.
func serve(ctx context.Context, cfg config.Config, opts serveOptions) error {
	if err := turnCoreDumpsOff(); err != nil {
		return err
	}
	// The gateway must survive the exit of the process that reads its log. The signal is caught rather than ignored,
	// because boxes would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if opts.predecessor == nil && store.InUse(cfg.StateDir) {
		return fmt.Errorf("a gateway is already running with the state directory %s: stop it, or give this one a state_dir, pools and "+
			"addresses of its own", cfg.StateDir)
	}
	if err := hostError(ctx, cfg); err != nil {
		return err
	}
	log, out, err := openLog(cfg.Log, os.Stderr)
	if err != nil {
		return err
	}
	defer syncOnSignals(ctx, out)()
	defer func() { _ = out.Sync() }()
	// Libraries that accept no logger, such as the HTTP/2 client, log lines that servers can provoke.
	restore, err := zap.RedirectStdLogAt(log, zap.DebugLevel)
	if err != nil {
		return err
	}
	defer restore()
	o := host.Options{Config: cfg, Log: log, NoWatch: opts.noWatch, Text: opts.text, Before: opts.predecessor}
	if opts.greeting {
		o.Ready = func() { _, _ = out.Write([]byte(greeting(cfg))) }
	}
	if log.Core().Enabled(zap.InfoLevel) { // the level of decisions
		o.Decisions = out
	}
	return runHost(ctx, o, newReplacer(cfg, opts, log), opts.kept)
}

// turnCoreDumpsOff disables core dumps, which would write header values and keys to files.
func turnCoreDumpsOff() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	return nil
}

// runHost opens the sockets and the host, takes over the boxes of an earlier run, and serves until ctx ends or another
// process has replaced this one and all connections have drained.
func runHost(ctx context.Context, o host.Options, r *replacer, kept map[string]*os.File) error {
	var err error
	if o.Addresses, err = config.AddressesOf(o.Config.Network); err != nil {
		return err
	}
	if o.Before == nil {
		o.Listeners, err = listen.Open(ctx, o.Config, o.Addresses, o.Apart, kept)
	} else if o.Listeners, err = listen.Inherit(ctx, o.Before, o.Config, o.Addresses); err == nil {
		err = o.Before.AwaitRelease()
	}
	if err != nil {
		return err
	}
	defer o.Listeners.Close()
	o.Control = r.control
	h, err := host.Open(ctx, o)
	if err != nil {
		return err
	}
	if err := h.Recover(ctx); err != nil {
		return errors.Join(err, h.Close())
	}
	defer r.onHangup(ctx, h)()
	return errors.Join(h.Serve(ctx), h.Close())
}
