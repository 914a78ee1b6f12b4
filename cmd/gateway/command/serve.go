package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/audit/lines"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/oci"
	"boxgate/cmd/gateway/command/terminal"
	"boxgate/config"
	"boxgate/host"
	"boxgate/host/handover"
	"boxgate/host/listen"
	"boxgate/host/systemd"
	"boxgate/internal/buildinfo"
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
			if err := unblockSignals(); err != nil {
				return err
			}
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

// unblockedVariable marks a process that unblockSignals has started.
const unblockedVariable = "BOXGATE_SIGNALS_UNBLOCKED"

// unblockSignals executes this program again without blocked signals, if it was started with some. Each thread, and each process that it starts,
// inherits them, such as a runtime and its commands in boxes.
func unblockSignals() error {
	runtime.LockOSThread() // exec keeps the mask of the thread
	defer runtime.UnlockOSThread()
	var blocked unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, nil, &blocked); err != nil {
		return fmt.Errorf("the blocked signals: %w", err)
	}
	again := os.Getenv(unblockedVariable) != ""
	if err := os.Unsetenv(unblockedVariable); err != nil || blocked == (unix.Sigset_t{}) || again {
		return err
	}
	program, err := os.Executable()
	if err == nil {
		err = unix.PthreadSigmask(unix.SIG_SETMASK, &unix.Sigset_t{}, nil)
	}
	if err == nil {
		err = unix.Exec(program, os.Args, append(os.Environ(), unblockedVariable+"=1"))
	}
	return fmt.Errorf("signals are blocked, and the program could not be executed again without that: %w", err)
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

// greeting lists the addresses and files of the gateway, and the next command to type.
func greeting(cfg config.Config) string {
	var admin []string
	if cfg.Admin.Socket != "" {
		admin = append(admin, cfg.Admin.Socket)
	}
	if cfg.Admin.Listen != "" {
		admin = append(admin, cfg.Admin.URL())
	}
	lines := []string{
		"", "boxgate " + buildinfo.Get().Version + " is ready. Ctrl-C stops it; boxes go on, and are closed where the gateway decides.", "",
		"  admin API    " + strings.Join(admin, ", "),
		"  API key      " + filepath.Join(cfg.StateDir, "api-key"),
		"  public URLs  " + publicURLs(cfg.Ingress),
	}
	if cfg.Metrics.Listen != "" {
		lines = append(lines, "  metrics      http://"+cfg.Metrics.Listen+"/metrics")
	}
	return strings.Join(append(lines, "", "Next, in another terminal:  sudo gateway box create --name demo --policy preset:github,pypi", "", ""), "\n")
}

// publicURLs shows an example: the public URL of port 8000 of a box.
func publicURLs(c config.Ingress) string {
	if c.HTTPS == "" {
		return "none (ingress.https is off)"
	}
	url := "https://" + c.HostName("BOX", 8000)
	if _, port, err := net.SplitHostPort(c.HTTPS); err == nil && port != "443" {
		url += ":" + port
	}
	return url
}

// openLog opens the log. The returned logger and the decisions share the returned writer.
func openLog(c config.Log, to *os.File) (*zap.Logger, *lines.Writer, error) {
	level, err := zap.ParseAtomicLevel(c.Level)
	if err != nil {
		return nil, nil, fmt.Errorf("log.level: %w", err)
	}
	enc, encoder := zap.NewProductionEncoderConfig(), zapcore.NewJSONEncoder
	enc.TimeKey = "time"
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	if c.Format == "console" {
		enc, encoder = zap.NewDevelopmentEncoderConfig(), zapcore.NewConsoleEncoder
		enc.CallerKey, enc.ConsoleSeparator = "", "  "
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000") // like decisions
	}
	out := lines.New(lines.File(to))
	log := zap.New(zapcore.NewCore(encoder(enc), out, level), zap.AddCaller())
	out.OnLost(func(n uint64) {
		log.Warn("lines of the log were lost: it is read too slowly, or could not be written", zap.Uint64("lost", n))
	})
	return log, out, nil
}

// fatalSignals lists the signals that end a Go program unless caught, except for SIGINT, SIGTERM, and SIGHUP, which reloads.
var fatalSignals = []os.Signal{
	syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// syncOnSignals writes the pending log lines before a signal ends the process. SIGINT and SIGTERM are included only after
// ctx has ended; until then they ask for an orderly stop.
func syncOnSignals(ctx context.Context, out *lines.Writer) (stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range fatalSignals {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	unwatch := context.AfterFunc(ctx, func() { signal.Notify(signals, os.Interrupt, syscall.SIGTERM) })
	done := make(chan struct{})
	go syncOn(signals, done, out)
	return func() {
		unwatch()
		signal.Stop(signals)
		close(done)
	}
}

// syncOn writes the pending lines when a signal arrives, then lets the signal take its default effect. It uses a
// dedicated thread: after some signals the runtime dumps the registers of the receiving thread. On any other thread they
// might contain part of a secret that is being copied.
func syncOn(signals <-chan os.Signal, done <-chan struct{}, out *lines.Writer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case s := <-signals:
			_ = out.Sync()
			signal.Reset(s)
			_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), s.(syscall.Signal))
		case <-done:
			return
		}
	}
}

// predecessor returns the process that started this one as its replacement, or nil.
func predecessor() (*handover.Predecessor, error) {
	fd := os.Getenv(handover.Variable)
	if fd == "" {
		return nil, nil
	}
	_ = os.Unsetenv(handover.Variable)
	n, err := strconv.Atoi(fd)
	if err != nil {
		return nil, fmt.Errorf("%s is not a number; it is for the gateway itself to set", handover.Variable)
	}
	return handover.Greeted(n)
}

// replacer replaces this process by another one, which reads the current configuration.
type replacer struct {
	cfg  config.Config
	opts serveOptions
	log  *zap.Logger
	path string // of the program
	host atomic.Pointer[host.Host]
}

func newReplacer(cfg config.Config, opts serveOptions, log *zap.Logger) *replacer {
	path, err := os.Executable() // its path when this process started
	if err != nil {
		log.Warn("the path of the program is not known; upgrades run the same one", zap.Error(err))
		path = ownProgram
	}
	return &replacer{cfg: cfg, opts: opts, log: log, path: path}
}

// ownProgram is the running program, even if another file is at its path.
const ownProgram = "/proc/self/exe"

// reloadResult is the result of a reload or an upgrade.
type reloadResult struct {
	Replaced bool                `json:"replaced"`      // another process serves now
	PID      int                 `json:"pid,omitempty"` // of the new process
	Changes  []config.Difference `json:"changes"`
}

// control implements [host.Control].
func (r *replacer) control(ctx context.Context, word string) (any, error) {
	switch word {
	case "reload":
		return r.reload(ctx)
	case "upgrade":
		return r.upgrade(ctx)
	case rootsWord:
		h := r.host.Load()
		if h == nil {
			return nil, errors.New("the gateway is starting; try again")
		}
		return h.RenewRoots(ctx), nil
	case fleetStatusWord:
		h := r.host.Load()
		if h == nil {
			return nil, errors.New("the gateway is starting; try again")
		}
		return h.FleetStatus()
	case fleetWord:
		h := r.host.Load()
		if h == nil {
			return nil, errors.New("the gateway is starting; try again")
		}
		ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
		defer cancel()
		token, err := h.FleetToken(ctx)
		return token.Reveal(), err
	}
	return nil, fmt.Errorf("this gateway does not know the request %q; it is older than your command", word)
}

// reload applies the configuration file if it is valid and has changed, by starting another process that replaces this
// one. On any error, the running configuration stays.
func (r *replacer) reload(ctx context.Context) (reloadResult, error) {
	changes, err := r.changes()
	if err != nil {
		r.log.Error("the configuration was not reloaded; the current one stays active", zap.Error(err))
		return reloadResult{}, err
	}
	if len(changes) == 0 {
		r.log.Info("the configuration has not changed")
		return reloadResult{Changes: changes}, nil
	}
	return r.replace(ctx, "reload", changes)
}

// upgrade replaces this process with the currently installed program.
func (r *replacer) upgrade(ctx context.Context) (reloadResult, error) {
	changes, err := r.changes()
	if err != nil {
		r.log.Error("the gateway was not replaced", zap.Error(err))
		return reloadResult{}, err
	}
	return r.replace(ctx, "upgrade", changes)
}

// changes returns the differences between the running configuration and the file.
func (r *replacer) changes() ([]config.Difference, error) {
	text, err := config.ReadFile(r.opts.file)
	if err != nil {
		return nil, err
	}
	next, err := r.opts.parse(text)
	if err != nil {
		return nil, err
	}
	return config.Diff(r.cfg, next)
}

func (r *replacer) replace(ctx context.Context, what string, changes []config.Difference) (reloadResult, error) {
	h := r.host.Load()
	if h == nil {
		return reloadResult{}, errors.New("the gateway is starting; try again")
	}
	r.log.Info("starting another process to replace this one", zap.String("for", what), zap.Strings("changes", texts(changes)))
	pid, err := h.Replace(ctx, r.start)
	if err != nil {
		r.log.Error("the gateway was not replaced", zap.Error(err))
		return reloadResult{}, err
	}
	return reloadResult{Replaced: true, PID: pid, Changes: changes}, nil
}

func texts(changes []config.Difference) []string {
	out := []string{}
	for _, c := range changes {
		out = append(out, c.String())
	}
	return out
}

// start implements [host.Start].
func (r *replacer) start(theirs *os.File, own bool) (*os.Process, error) {
	defer theirs.Close()
	path := r.path
	if own {
		path = ownProgram
	}
	environ := append([]string{}, r.opts.environ...)
	p, err := os.StartProcess(path, os.Args, &os.ProcAttr{
		Env: append(environ, handover.Variable+"=3"), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, theirs},
	})
	if err != nil {
		return nil, fmt.Errorf("%s cannot be run: install the program there", filepath.Clean(path))
	}
	return p, nil
}

// onHangup makes SIGHUP reload the configuration until stop is called. On a terminal, SIGHUP stops the gateway.
func (r *replacer) onHangup(ctx context.Context, h *host.Host) (stop func()) {
	r.host.Store(h)
	hangups := make(chan os.Signal, 1)
	if signal.Ignored(syscall.SIGHUP) { // by nohup
		return func() {}
	}
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-hangups:
				if r.opts.greeting { // the terminal is gone
					_ = unix.Kill(unix.Getpid(), unix.SIGTERM)
					return
				}
				systemd.Reloading()
				if done, err := r.reload(ctx); err != nil || !done.Replaced {
					_ = systemd.Ready()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		cancel()
	}
}

// environWithout returns the environment without the variable set by a handover.
func environWithout(environ []string) []string {
	var out []string
	for _, e := range environ {
		if !strings.HasPrefix(e, handover.Variable+"=") {
			out = append(out, e)
		}
	}
	return out
}

// newReloadCommand is `gateway reload`.
func newReloadCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "reload", "Reload the configuration of the running gateway",
		"The configuration is applied as a whole or not at all: if it is invalid, or a gateway cannot start with it, the current one stays.\n"+
			"DNS, the proxy and public URLs keep working, and open connections are drained.")
}

// newUpgradeCommand is `gateway upgrade`.
func newUpgradeCommand(o *cli.Options) *cobra.Command {
	return replaceCommand(o, "upgrade", "Replace the running gateway by the installed program, without interruption",
		"First install the new program at the path of the running one. DNS, the proxy and public URLs keep working, and open connections are\n"+
			"drained. If the new program does not start, the running one continues.")
}

func replaceCommand(o *cli.Options, word, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: word, Short: short, Long: long, Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, renewed, err := replaceAndRenew(cmd, o, word)
			if err != nil {
				return err
			}
			if o.JSON {
				return cli.WriteJSON(cmd.OutOrStdout(), struct {
					reloadResult
					Roots *host.RenewedRoots `json:"roots,omitempty"`
				}{done, renewed})
			}
			return nil
		},
	}
}

// replaceAndRenew asks for a reload or an upgrade, prints the result unless as JSON, and then has the running boxes given new roots.
// The result for launched boxes is nil if that was not asked for.
func replaceAndRenew(cmd *cobra.Command, o *cli.Options, word string) (done reloadResult, renewed *host.RenewedRoots, err error) {
	out := cmd.OutOrStdout()
	if o.JSON {
		out = io.Discard
	}
	if err := ask(cmd, o, "waiting for the gateway to be replaced", word, &done); err != nil {
		return done, nil, err
	}
	for _, c := range done.Changes {
		fmt.Fprintln(out, c)
	}
	message := "the configuration has not changed"
	if done.Replaced {
		message = "another process serves; the one before drains its connections"
	}
	fmt.Fprintln(out, message)
	changed := slices.ContainsFunc(done.Changes, func(d config.Difference) bool { return d.Key == rootsKey })
	if changed && done.Replaced {
		renewContainers(cmd, o, out)
	}
	renewed = renewLaunched(cmd, o, out, changed)
	return done, renewed, nil
}

// ask sends a request on the control socket and shows that it waits.
func ask(cmd *cobra.Command, o *cli.Options, waiting, word string, answer any) error {
	defer o.Waiting(waiting)()
	return host.AskControl(cmd.Context(), word, answer)
}

const (
	rootsKey = "proxy.upstream_ca_files"
	// rootsWord is the request that gives configured roots to running launched boxes.
	rootsWord = "roots"
)

// renewLaunched has the configured roots given to running launched boxes that lack them, and warns of each that does not get them. The
// reload itself has succeeded.
func renewLaunched(cmd *cobra.Command, o *cli.Options, out io.Writer, changed bool) *host.RenewedRoots {
	var renewed host.RenewedRoots
	if err := ask(cmd, o, "waiting for boxes to trust "+rootsKey, rootsWord, &renewed); err != nil {
		if changed && !o.JSON { // otherwise it may be an older gateway, before its upgrade
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: running boxes may not trust all of %s: %v; `gateway check` lists them\n", rootsKey, err)
		}
		return nil
	}
	if o.JSON { // the result has the failures
		return &renewed
	}
	for _, failed := range renewed.Failed {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s does not trust all of %s before its next start: %q; `gateway reload` tries again\n",
			cmp.Or(failed.Name, string(failed.ID)), rootsKey, failed.Error)
	}
	if changed && renewed.Trusting > 0 {
		fmt.Fprintf(out, "new programs in %s trust %s\n", cli.Count(uint64(renewed.Trusting), "running box", "running boxes"), rootsKey)
	}
	return &renewed
}

// renewContainers adds new roots to the attached containers in which the CA of their box is installed, and warns of each container
// that does not get them. The reload itself has succeeded.
func renewContainers(cmd *cobra.Command, o *cli.Options, out io.Writer) {
	var boxes []struct {
		ID, Name string
		Attached *api.Attached
	}
	client, err := o.Client()
	if err == nil {
		err = client.Get(cmd.Context(), api.BoxesPath(""), &boxes)
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: containers do not trust all of %s: %v; try `gateway box install-ca BOX`\n", rootsKey, err)
		return
	}
	for _, box := range boxes {
		if !hasContainer(box.Attached) {
			continue
		}
		shown := cmp.Or(box.Name, box.ID)
		g, err := dockerGateway(o)
		renewed := false
		switch {
		case err != nil:
		case box.Attached.Kind == api.AttachOCI:
			renewed, err = oci.Gateway{Client: g.Client, Roots: g.Roots}.RenewCA(cmd.Context(), box.ID)
		default:
			renewed, err = g.RenewCA(cmd.Context(), box.ID, box.Attached.Container)
		}
		if err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s does not trust all of %s: %v; try `gateway box install-ca %[1]s`\n", shown, rootsKey, err)
		} else if renewed {
			fmt.Fprintf(out, "%s: new programs in the container trust %s\n", shown, rootsKey)
		}
	}
}
