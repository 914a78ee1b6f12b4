package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host"
	"boxgate/host/handover"
	"boxgate/host/systemd"
)

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
