// Package solo runs one command of the host under a temporary gateway in this process, for `gateway run`.
package solo

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/enclosure"
	"boxgate/enclosure/inside"
	"boxgate/host"
	"boxgate/host/listen"
	"boxgate/host/netns"
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
	printIneffective(o, box)
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

// printIneffective warns of allowed destinations that no policy opens.
func printIneffective(o Options, box api.Box) {
	for _, w := range box.Warnings {
		if strings.HasPrefix(w.Pointer, "/allowed_") && !o.Quiet {
			fmt.Fprintf(o.Errout, "gateway: warning: %s\n", w.Message)
		}
	}
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

// gateway is a gateway for one box inside this process. It offers no API. Its rules and the box's link are in a network
// namespace without uplink, and the proxy dials from the host's namespace, so the host's network configuration does not
// change.
type gateway struct {
	*host.Host
	addrs     config.Addresses
	listeners *listen.Sockets
	net       *netns.Net
	served    chan error // the error of the gateway once it ends
	cancel    context.CancelFunc
}

// standalone returns the operator's configuration with its state in memory and without log history, admin API, metrics, public
// URLs and launcher. Refused HTTPS gets a page: the command trusts the CA of this gateway, and many clients, npm among them,
// retry for minutes after a TLS alert, but stop at a 403.
func standalone(cfg config.Config) config.Config {
	cfg.StateDir = filepath.Join(stateMount, "state")
	cfg.Log.History, cfg.Log.Observations, cfg.Log.Export = config.Bounds{}, config.Bounds{}, config.Export{}
	cfg.Proxy.Deny = "page"
	cfg.Admin, cfg.Metrics = config.Admin{}, config.Metrics{}
	cfg.Ingress.HTTPS, cfg.Ingress.HTTP, cfg.Ingress.TLS.Mode = "", "", "internal"
	cfg.Launcher.Enabled, cfg.Launcher.RunDir = false, filepath.Join(stateMount, "boxes")
	return cfg
}

// open starts the gateway and returns once it serves.
func open(ctx context.Context, cfg config.Config, log *zap.Logger) (g *gateway, err error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // header values are in memory
		return nil, fmt.Errorf("turning core dumps off: %w", err)
	}
	cfg = standalone(cfg)
	ctx, end := context.WithCancel(ctx)
	g = &gateway{served: make(chan error, 1), cancel: end}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if g.addrs, err = config.AddressesOf(cfg.Network); err != nil {
		return g, err
	}
	if g.net, err = netns.New(); err != nil {
		return g, err
	}
	if g.listeners, err = listen.Open(ctx, cfg, g.addrs, g.net, nil); err != nil {
		return g, err
	}
	ready := make(chan struct{})
	g.Host, err = host.Open(ctx, host.Options{
		Config: cfg, Addresses: g.addrs, Listeners: g.listeners, Apart: g.net, Log: log, Ready: func() { close(ready) },
	})
	if err != nil {
		return g, err
	}
	if err := g.Recover(ctx); err != nil {
		return g, err
	}
	go func() { g.served <- g.Serve(ctx) }()
	select {
	case <-ready:
		return g, nil
	case err := <-g.served:
		return g, errors.Join(errors.New("the gateway ended"), err)
	}
}

// attach connects the network namespace of a process to the gateway. The policy is active when attach returns.
func (g *gateway) attach(ctx context.Context, pid int, spec policy.Spec, headers []policy.HeaderRule) (api.Box, error) {
	return g.Services().Life.AttachBox(ctx, api.AttachRequest{
		Attached: api.Attached{Kind: api.AttachPID, Ref: strconv.Itoa(pid), PID: pid, Stack: api.StackHost}, Policy: spec, Headers: headers,
	})
}

// resolvers returns the DNS servers for the command.
func (g *gateway) resolvers() []netip.Addr { return []netip.Addr{g.addrs.GatewayV4, g.addrs.GatewayV6} }

// Close stops the gateway, which may be only partly open. It does not wait for everything: the rest ends with the
// process.
func (g *gateway) Close() {
	g.cancel()
	if g.listeners != nil {
		g.listeners.Close()
	}
	if g.net != nil {
		_ = g.net.Close()
	}
}

// stateMount is the directory of the temporary gateway's state: a tmpfs in the mount namespace of this process. Other
// processes see an empty directory, and concurrent commands can share the path.
const stateMount = "/run/boxgate-run"

// Stage restarts the program with the given arguments in a new mount namespace with the state directory. It returns only
// on failure. The restart is needed because a process with threads cannot change its mount namespace.
func Stage(args []string) error {
	if err := os.MkdirAll(stateMount, 0o700); err != nil {
		return err
	}
	runtime.LockOSThread() // the new program starts in the namespace of this thread
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("boxgate", stateMount, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mounting %s: %w", stateMount, err)
	}
	return unix.Exec("/proc/self/exe", args, os.Environ())
}

// needStage requires that this process was started by [Stage]; otherwise the state would be written to disk and stay
// there.
func needStage() error {
	var at, above unix.Stat_t
	err := errors.Join(unix.Stat(stateMount, &at), unix.Stat("/run", &above))
	if err != nil || at.Dev == above.Dev {
		return errors.New("this is started by `gateway run`")
	}
	entries, err := os.ReadDir(stateMount)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is in use", stateMount)
	}
	return err
}

// bundlePath is the file with the public roots and the gateway's CA, as the command sees it.
const bundlePath = inside.Private + "/ca-bundle.pem"

// bundle returns the root certificates for the command: the host's, the ones in the caller's environment variables, the
// ones configured for upstreams, and the gateway's interception CA.
func bundle(env, upstreams []string, ca []byte) ([]byte, error) {
	out, err := launcher.PublicRoots()
	if err != nil {
		return nil, err
	}
	for _, file := range append(callersRoots(env), upstreams...) {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // the command could not read the file either
		}
		out = append(out, certificates(data)...)
	}
	return append(out, ca...), nil
}

// callersRoots returns the files in the caller's trust variables.
func callersRoots(env []string) []string {
	var out []string
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		for _, known := range launcher.TrustVariables() {
			if name == known && value != "" {
				out = append(out, value)
			}
		}
	}
	return out
}

// certificates returns only the certificates of a PEM file.
func certificates(data []byte) []byte {
	var out bytes.Buffer
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out.Bytes()
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes}) // writes to a buffer do not fail
		}
	}
}

// systemBundles lists the places where programs look for the host's roots.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem", "/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem",
}

// files returns the files that replace the host's files in the command's view.
func files(roots []byte, resolvers []netip.Addr) []inside.File {
	var conf strings.Builder
	for _, a := range resolvers {
		fmt.Fprintf(&conf, "nameserver %s\n", a)
	}
	out := []inside.File{
		{Path: bundlePath, Content: roots, Always: true},
		{Path: "/etc/resolv.conf", Content: []byte(conf.String())},
	}
	for _, path := range systemBundles {
		out = append(out, inside.File{Path: path, Content: roots})
	}
	return out
}

// withVariables sets variables in an environment and removes others.
func withVariables(env []string, set map[string]string, remove map[string]bool) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if _, ours := set[name]; !ours && !remove[name] {
			out = append(out, kv)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}
