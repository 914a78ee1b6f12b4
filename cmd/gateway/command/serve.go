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
			cfg, err := o.Load()
			if err != nil {
				return err
			}
			onTerminal := terminal.IsOne(os.Stderr)
			if cfg.Log.Format == "auto" {
				cfg.Log.Format = "json"
				if onTerminal {
					cfg.Log.Format = "console"
				}
			}
			ctx := cmd.Context()
			if untilEOF {
				ctx = endsWithInput(ctx, cmd.InOrStdin())
			}
			return serve(ctx, cfg, serveOptions{noWatch: noWatch, greet: onTerminal})
		},
	}
	cmd.Flags().BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends")
	_ = cmd.Flags().MarkHidden("until-eof")
	cmd.Flags().BoolVar(&noWatch, "no-watch", false, "do not restore kernel rules that other programs change (for tests)")
	_ = cmd.Flags().MarkHidden("no-watch")
	return cmd
}

// endsWithInput returns a context that ends when r does, so that a gateway started by a demo or a test does not outlive
// it.
func endsWithInput(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx
}

// serveOptions are how to serve, besides the configuration.
type serveOptions struct {
	noWatch bool // kernel rules that other programs change are not restored
	greet   bool // say, once ready, where everything is
}

// serve runs the gateway until ctx ends. It first checks the host and opens its sockets, so that problems with them are
// reported before anything has been changed.
func serve(ctx context.Context, cfg config.Config, opts serveOptions) error {
	if err := turnCoreDumpsOff(); err != nil {
		return err
	}
	// If the reader of the log exits, the gateway must go on. The signal is caught rather than ignored, because boxes
	// would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if store.InUse(cfg.StateDir) {
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
	// Libraries that cannot be given a logger, such as the HTTP/2 client, log lines that servers can provoke.
	restore, err := zap.RedirectStdLogAt(log, zap.DebugLevel)
	if err != nil {
		return err
	}
	defer restore()
	o := host.Options{Config: cfg, Log: log, NoWatch: opts.noWatch}
	if opts.greet {
		o.Ready = func() { _, _ = out.Write([]byte(greeting(cfg))) }
	}
	if log.Core().Enabled(zap.InfoLevel) { // at which decisions are logged
		o.Decisions = out
	}
	return runHost(ctx, o)
}

// turnCoreDumpsOff keeps header values and keys, which a core dump would contain, out of files.
func turnCoreDumpsOff() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	return nil
}

// runHost opens the sockets and the host, takes over the boxes of an earlier run and serves until ctx ends.
func runHost(ctx context.Context, o host.Options) error {
	var err error
	if o.Addresses, err = config.AddressesOf(o.Config.Network); err != nil {
		return err
	}
	if o.Listeners, err = host.Listen(ctx, o.Config, o.Addresses, o.Apart); err != nil {
		return err
	}
	defer o.Listeners.Close()
	h, err := host.Open(ctx, o)
	if err != nil {
		return err
	}
	if err := h.Recover(ctx); err != nil {
		return errors.Join(err, h.Close())
	}
	return errors.Join(h.Serve(ctx), h.Close())
}
