package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/internal/testnet"
)

// lab is a gateway process with an internet of its own: network namespaces, a state directory and a configuration that
// exist for one demo or one test. Nothing in it touches the machine's own network.
type lab struct {
	Net    *testnet.Net
	Client *api.Client

	dir     string   // everything on disk lies below it
	lock    *os.File // says that the directory is in use
	config  string
	socket  string
	image   string
	flags   []string // of `gateway serve`, besides the usual
	env     []string // likewise
	self    string   // the gateway binary
	log     *os.File // what the gateway writes
	errout  *os.File // where it writes that to; nil: to log
	process *exec.Cmd
	stdin   io.Closer // closing it tells the gateway that the lab is gone
	exited  chan struct{}
}

// labOptions say how a lab differs from the usual.
type labOptions struct {
	imageDir string
	change   func(*config) // last word on the configuration
	net      testnet.Options
}

// newLab makes the namespaces and the directory; [lab.start] starts the gateway.
func newLab(ctx context.Context, o labOptions) (*lab, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	l := &lab{self: self, image: o.imageDir}
	if l.dir, l.lock, err = makeLabDir(); err != nil {
		return nil, err
	}
	if l.Net, err = testnet.New(ctx, o.net); err != nil {
		return nil, errors.Join(fmt.Errorf("making the test internet: %w", err), l.Close())
	}
	if l.log, err = os.Create(filepath.Join(l.dir, "gateway.log")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.writeConfig(o.change); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// writeConfig makes a configuration in which every path and address is the lab's own.
func (l *lab) writeConfig(change func(*config)) error {
	ca := filepath.Join(l.dir, "internet-ca.pem")
	if err := os.WriteFile(ca, l.Net.CAPEM(), 0o600); err != nil {
		return err
	}
	l.socket = filepath.Join(l.dir, "admin.sock")
	cfg := defaultConfig()
	cfg.StateDir = filepath.Join(l.dir, "state")
	cfg.Admin = adminConfig{Socket: l.socket, Listen: "127.0.0.1:8600"}
	cfg.Network.ProtectedExempt = testnet.Prefixes()
	cfg.DNS.Upstreams = l.Net.DNSServers()
	cfg.Proxy.UpstreamCAFiles = []string{ca}
	cfg.Launcher.ImageDir = l.image
	cfg.Launcher.RunDir = labRunDir(l.dir)
	cfg.Log = logConfig{Level: "debug", Format: "json"}
	if change != nil {
		change(&cfg)
	}
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	l.config = filepath.Join(l.dir, "boxgate.yaml")
	return os.WriteFile(l.config, data, 0o600)
}

// start runs `gateway serve` in the gateway's namespace and returns when it is ready.
func (l *lab) start(ctx context.Context) error {
	pipe, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pipe.Close()
	var errout tail
	cmd := exec.Command(l.self, append([]string{"serve", "--config", l.config, "--until-eof"}, l.flags...)...)
	cmd.Env = append(l.environ(), l.env...)
	cmd.Stdin = pipe
	cmd.Stdout = l.log
	cmd.Stderr = io.MultiWriter(l.log, &errout)
	if l.errout != nil {
		cmd.Stderr = l.errout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the lab to handle, not for the gateway
	if err := l.Net.Gateway().Start(cmd); err != nil {
		return errors.Join(err, stdin.Close())
	}
	l.process, l.stdin, l.exited = cmd, stdin, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(l.exited)
	}()
	return l.awaitReady(ctx, &errout)
}

// awaitReady polls until the gateway answers that it is ready, or has exited.
func (l *lab) awaitReady(ctx context.Context, errout *tail) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if client, err := l.dial(); err == nil && client.Do(ctx, "GET", "/readyz", nil, nil) == nil {
			l.Client = client
			return nil
		}
		select {
		case <-l.exited:
			return fmt.Errorf("the gateway did not start: %s", strings.TrimSpace(errout.String()))
		case <-ctx.Done():
			return fmt.Errorf("the gateway did not become ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// logText is what the gateway has written so far.
func (l *lab) logText() string {
	data, err := os.ReadFile(l.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// dial makes a client with the key of the gateway's first start.
func (l *lab) dial() (*api.Client, error) {
	key, err := os.ReadFile(filepath.Join(l.dir, "state", "api-key"))
	if err != nil {
		return nil, err
	}
	return api.NewClient(l.socket, strings.TrimSpace(string(key))), nil
}

// environ is the environment of the lab's commands: the machine's, without configuration of another gateway.
func (l *lab) environ() []string {
	env := []string{"BOXGATE_CONFIG=" + l.config}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, environmentPrefix) {
			env = append(env, e)
		}
	}
	return env
}

// command prepares `gateway args...` against the lab's gateway, to be run anywhere: the admin socket is a file.
func (l *lab) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.self, args...)
	cmd.Env = l.environ()
	return cmd
}

// stop ends the gateway in the way a service manager would, and waits for it.
func (l *lab) stop() error {
	if l.process == nil {
		return nil
	}
	_ = l.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-l.exited:
	case <-time.After(20 * time.Second):
		l.kill()
		return errors.New("the gateway did not stop within 20 seconds and was killed")
	}
	l.process = nil
	return l.stdin.Close()
}

// kill ends the gateway with SIGKILL and waits for it.
func (l *lab) kill() {
	if l.process == nil {
		return
	}
	_ = l.process.Process.Kill()
	<-l.exited
	_ = l.stdin.Close()
	l.process = nil
}

// Close ends the gateway, removes the boxes and everything else the lab made. It may be called twice.
func (l *lab) Close() error {
	errs := []error{l.stop()}
	if l.log != nil {
		errs = append(errs, l.log.Close())
		l.log = nil
	}
	if l.dir != "" {
		errs = append(errs, removeLabDir(l.dir), l.lock.Close())
		l.dir = ""
	}
	if l.Net != nil {
		errs = append(errs, l.Net.Close())
		l.Net = nil
	}
	return errors.Join(errs...)
}

// tail keeps the last 4 KiB written to it.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if extra := t.buf.Len() - 4096; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) String() string { return t.buf.String() }
