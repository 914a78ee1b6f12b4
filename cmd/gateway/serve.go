package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/internal/fault"
	"boxgate/store"
)

// newServeCommand is `gateway serve`.
func newServeCommand(o *globalOptions) *cobra.Command {
	var untilEOF, noWatch bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway in the foreground",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if untilEOF {
				ctx = endsWithInput(ctx, cmd.InOrStdin())
			}
			return serve(ctx, cfg, noWatch)
		},
	}
	cmd.Flags().BoolVar(&untilEOF, "until-eof", false, "stop when standard input ends")
	_ = cmd.Flags().MarkHidden("until-eof")
	cmd.Flags().BoolVar(&noWatch, "no-watch", false, "leave kernel rules that other programs change as they are (for tests)")
	_ = cmd.Flags().MarkHidden("no-watch")
	return cmd
}

// endsWithInput returns a context that ends when r does: a gateway started by a demo or a test does not outlive it.
func endsWithInput(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel()
	}()
	return ctx
}

// shutdownTimeout is how long requests and commands may go on after the first signal.
const shutdownTimeout = 10 * time.Second

// serve runs the gateway until ctx ends. It first checks the host and opens its sockets, so that whatever is wrong with
// them is told while nothing has been changed. With noWatch, kernel rules that other programs change stay changed.
func serve(ctx context.Context, cfg config, noWatch bool) error {
	// A core dump would hold header values and keys.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("turning core dumps off: %w", err)
	}
	// A reader of the log that goes away must not end the gateway. Ignoring the signal would be inherited by the boxes.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if store.InUse(cfg.StateDir) {
		return fmt.Errorf("a gateway is already running with the state directory %s: stop it, or give this one a state_dir, pools and "+
			"addresses of its own", cfg.StateDir)
	}
	if err := hostError(ctx, cfg); err != nil {
		return err
	}
	log, err := newLogger(cfg.Log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }()
	// Libraries that have no logger of their own to be given, such as HTTP/2's client, write lines at a server's bidding.
	restore, err := zap.RedirectStdLogAt(log, zap.DebugLevel)
	if err != nil {
		return err
	}
	defer restore()
	addrs, err := newAddresses(cfg.Network)
	if err != nil {
		return err
	}
	sockets, err := listen(ctx, cfg, addrs)
	if err != nil {
		return err
	}
	defer sockets.Close()
	var h *host
	err = contained(log, func() (err error) {
		h, err = openHost(ctx, cfg, addrs, sockets, log)
		return err
	})
	if err != nil {
		return err
	}
	if h.noWatch = noWatch; noWatch {
		log.Warn("kernel rules that other programs change are not restored: this is for tests")
	}
	return errors.Join(contained(log, func() error { return h.serve(ctx) }), contained(log, h.close))
}

// serve accepts on every socket until ctx ends or one of them fails, then drains.
func (h *host) serve(ctx context.Context) error {
	admin, err := api.New(api.Config{
		Host: h, CheckKey: h.store.CheckAPIKey, Hosts: h.cfg.Admin.Hosts, HasSecret: h.secrets.Has, Log: h.log, Admitted: keyShown,
	})
	if err != nil {
		return err
	}
	adminServer := admin.Server()
	adminServer.ConnContext = withVisitor
	metrics := &http.Server{
		Handler: h.metricsHandler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: audit.ServerLog(h.log, nil),
	}

	group, ctx := errgroup.WithContext(ctx)
	run := func(what string, f func() error) {
		group.Go(func() error {
			err := contained(h.log, f)
			wanted := ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)
			if err != nil && !wanted {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	h.serveEgress(ctx, run)
	h.serveFront(run)
	for _, ln := range h.listeners.admin {
		run("admin API", func() error { return adminServer.Serve(h.shares.forStrangers(ln)) })
	}
	if h.listeners.metrics != nil {
		run("metrics", func() error { return metrics.Serve(h.shares.forStrangers(h.listeners.metrics)) })
	}
	if !h.noWatch {
		run("kernel rules", func() error { return h.firewall.Watch(ctx) })
	}
	run("host addresses", func() error { return h.followAddresses(ctx) })
	run("sign of life", func() error { return noteRun(ctx, h.launcher.RunDir()) })
	run("connection table", func() error { return h.followConntrack(ctx) })
	run("files of deleted boxes", func() error { h.launcher.KeepTrashEmpty(ctx); return nil })
	if err := notifySystemd("READY=1"); err != nil {
		h.log.Warn("systemd was not told that the gateway is ready", zap.Error(err))
	}
	h.log.Info("ready", zap.Int("boxes", len(h.all())))

	group.Go(func() error {
		<-ctx.Done()
		return contained(h.log, func() error { return h.drain(adminServer, metrics) })
	})
	return group.Wait()
}

// drain ends what is under way, and the listeners.
func (h *host) drain(adminServer, metrics *http.Server) error {
	_ = notifySystemd("STOPPING=1")
	drain, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer h.listeners.Close()
	// The first to stop is the API, so that no change begins; boxes and their rules stay as they are.
	err := errors.Join(fault.At(drain, "stop: begun"), adminServer.Shutdown(drain))
	err = errors.Join(err, fault.At(drain, "stop: no more changes"))
	err = errors.Join(err, h.ingress.Shutdown(drain), h.proxy.Shutdown(drain), metrics.Shutdown(drain))
	err = errors.Join(err, fault.At(drain, "stop: drained"))
	if errors.Is(err, context.DeadlineExceeded) {
		h.log.Warn("requests still under way were cut")
		return nil
	}
	return err
}

// serveEgress starts what boxes are steered to.
func (h *host) serveEgress(ctx context.Context, run func(string, func() error)) {
	for _, ln := range h.listeners.transparent {
		run("proxy", func() error { return h.proxy.ServeTransparent(ctx, ln) })
	}
	for _, ln := range h.listeners.explicit {
		run("explicit proxy", func() error { return h.proxy.ServeExplicit(ctx, ln) })
	}
	for _, ln := range h.listeners.dnsTCP {
		run("DNS over TCP", func() error { return h.dns.ServeTCP(ctx, ln) })
	}
	for _, pc := range h.listeners.dnsUDP {
		run("DNS over UDP", func() error { return h.dns.ServeUDP(ctx, pc) })
	}
}

// serveFront starts the public URLs. Over plain HTTP they are served on loopback alone; elsewhere it redirects.
func (h *host) serveFront(run func(string, func() error)) {
	l := h.listeners
	var httpsPort uint16
	if l.https != nil {
		httpsPort = portOf(l.https)
		run("public URLs", func() error { return h.ingress.ServeTLS(h.shares.bound(l.https)) })
	}
	switch {
	case l.http == nil:
	case l.http.Addr().(*net.TCPAddr).IP.IsLoopback():
		run("public URLs over HTTP", func() error { return h.ingress.ServePlain(h.shares.bound(l.http)) })
	case l.https != nil:
		run("redirects", func() error { return h.ingress.ServeRedirect(h.shares.bound(l.http), httpsPort, nil) })
	default:
		h.log.Warn("ingress.http serves nothing: it is not on a loopback address and ingress.https is off")
	}
}

// metricsHandler serves /metrics.
func (h *host) metricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.metrics, promhttp.HandlerOpts{}))
	return mux
}

// portOf returns the port of a TCP listener.
func portOf(ln net.Listener) uint16 { return ln.Addr().(*net.TCPAddr).AddrPort().Port() }

// newLogger makes the log on standard error.
func newLogger(c logConfig) (*zap.Logger, error) {
	cfg := zap.NewProductionConfig()
	if c.Format == "console" {
		cfg.Encoding = "console"
		cfg.EncoderConfig = zap.NewDevelopmentEncoderConfig()
	}
	cfg.EncoderConfig.TimeKey = "time"
	cfg.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.Sampling = nil // every decision is logged
	cfg.DisableStacktrace = true
	level, err := zap.ParseAtomicLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	cfg.Level = level
	return cfg.Build()
}

// notifySystemd sends a state to the service manager that started the gateway, if one did (sd_notify(3)).
func notifySystemd(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}
