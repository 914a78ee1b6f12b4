// Package lab runs a gateway with a test internet, in network namespaces created for it: for `gateway demo` and for
// end-to-end tests.
package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"boxgate/api"
	"boxgate/config"
	"boxgate/internal/testnet"
)

// Lab is a gateway process with a test internet: network namespaces, a state directory and a configuration that exist
// for one demo or one test. It does not change the machine's own network.
type Lab struct {
	Net    *testnet.Net
	Client *api.Client

	Dir     string        // contains all files of the lab
	Config  string        // the gateway's configuration file
	Socket  string        // its admin socket
	Flags   []string      // additional flags of `gateway serve`
	Env     []string      // additional environment of `gateway serve`
	Self    string        // the gateway binary
	Log     *os.File      // output of the gateway
	Errout  *os.File      // error output of the gateway; nil: Log
	Process *exec.Cmd     // the gateway; nil if it is not running
	Exited  chan struct{} // closed when the process has ended

	image string
	lock  *os.File  // marks the directory as used
	stdin io.Closer // closing it makes the gateway exit
}

// startTimeout bounds the start of a gateway on a busy machine.
const startTimeout = 2 * time.Minute

// Options configure a lab.
type Options struct {
	Gateway  string // path of the gateway binary
	ImageDir string
	Change   func(*config.Config) // edits the final configuration
	Net      testnet.Options
}

// New creates the namespaces and the directory; [Lab.Start] starts the gateway.
func New(ctx context.Context, o Options) (*Lab, error) {
	l := &Lab{Self: o.Gateway, image: o.ImageDir}
	var err error
	if l.Dir, l.lock, err = makeLabDir(); err != nil {
		return nil, err
	}
	if l.Net, err = testnet.New(ctx, o.Net); err != nil {
		return nil, errors.Join(fmt.Errorf("making the test internet: %w", err), l.Close())
	}
	if l.Log, err = os.Create(filepath.Join(l.Dir, "gateway.log")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := l.writeConfig(o.Change); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// configName is the name of the configuration in a lab's directory.
const configName = "boxgate.yaml"

// writeConfig writes a configuration in which every path and address belongs to the lab.
func (l *Lab) writeConfig(change func(*config.Config)) error {
	ca := filepath.Join(l.Dir, "internet-ca.pem")
	if err := os.WriteFile(ca, l.Net.CAPEM(), 0o600); err != nil {
		return err
	}
	l.Socket = filepath.Join(l.Dir, "admin.sock")
	cfg := config.Default()
	cfg.StateDir = filepath.Join(l.Dir, "state")
	cfg.Admin = config.Admin{Socket: l.Socket, Listen: "127.0.0.1:8600", UI: cfg.Admin.UI, Audit: cfg.Admin.Audit}
	cfg.Network.ProtectedExempt = testnet.Prefixes()
	cfg.DNS.Upstreams = l.Net.DNSServers()
	cfg.Proxy.UpstreamCAFiles = []string{ca}
	cfg.Launcher.ImageDir = l.image
	cfg.Launcher.RunDir = RunDir(l.Dir)
	cfg.Log.Level, cfg.Log.Format = "debug", "json"
	if change != nil {
		change(&cfg)
	}
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return err
	}
	l.Config = filepath.Join(l.Dir, configName)
	return os.WriteFile(l.Config, data, 0o600)
}

// Start runs `gateway serve` in the gateway's namespace and returns when it is ready.
func (l *Lab) Start(ctx context.Context) error {
	pipe, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer pipe.Close()
	ready, err := l.listenForReady()
	if err != nil {
		return errors.Join(err, stdin.Close())
	}
	defer ready.Close()
	errout, stderr, err := l.collectErrors()
	if err != nil {
		return errors.Join(err, stdin.Close())
	}
	cmd := exec.Command(l.Self, append([]string{"serve", "--config", l.Config, "--until-eof"}, l.Flags...)...)
	cmd.Env = append(append(l.environ(), "NOTIFY_SOCKET="+ready.LocalAddr().String()), l.Env...)
	cmd.Stdin = pipe
	cmd.Stdout = l.Log
	cmd.Stderr = stderr
	if l.Errout != nil {
		cmd.Stderr = l.Errout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the lab handles Ctrl-C, not the gateway
	err = l.Net.Gateway().Start(cmd)
	_ = stderr.Close() // belongs to the process now
	if err != nil {
		return errors.Join(err, stdin.Close())
	}
	l.Process, l.stdin, l.Exited = cmd, stdin, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(l.Exited)
	}()
	return l.awaitReady(ctx, ready, errout)
}

// collectErrors returns a file that writes to the log, and the end of its output. It is for standard error. A pipe of
// os/exec would make Wait wait for the children of the gateway too, because they inherit it.
func (l *Lab) collectErrors() (errout *tail, stderr *os.File, err error) {
	read, stderr, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	errout = &tail{whole: make(chan struct{})}
	out := io.MultiWriter(l.Log, errout)
	go func() {
		defer close(errout.whole)
		defer read.Close()
		_, _ = io.Copy(out, read)
	}()
	return errout, stderr, nil
}

// listenForReady opens the socket on which the gateway reports readiness, as it does to systemd.
func (l *Lab) listenForReady() (*net.UnixConn, error) {
	path := filepath.Join(l.Dir, "notify.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
}

// awaitReady returns when the gateway has reported readiness and its API confirms it, or when the gateway has exited.
func (l *Lab) awaitReady(ctx context.Context, ready *net.UnixConn, errout *tail) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		message := make([]byte, 1024)
		for { // the other messages are about sockets kept by a service manager
			if n, err := ready.Read(message); err != nil || string(message[:n]) == "READY=1" { // on an error the wait is over
				return
			}
		}
	}()
	select {
	case <-l.Exited:
		select {
		case <-errout.whole:
		case <-ctx.Done():
		}
		return fmt.Errorf("the gateway did not start: %s", strings.TrimSpace(errout.String()))
	case <-ctx.Done():
		return fmt.Errorf("the gateway did not become ready: %w: %s", ctx.Err(), l.stuckAt())
	case <-reported:
	}
	client, err := l.Dial()
	if err == nil {
		err = client.Do(ctx, "GET", "/readyz", nil, nil)
	}
	if err != nil {
		return fmt.Errorf("the gateway reported that it is ready, but is not: %w", err)
	}
	l.Client = client
	return nil
}

// stuckAt kills the gateway and returns the stack of its main goroutine.
func (l *Lab) stuckAt() string {
	_ = l.Process.Process.Signal(syscall.SIGQUIT)
	select {
	case <-l.Exited:
	case <-time.After(5 * time.Second):
		return "it does not answer signals"
	}
	_, stack, _ := strings.Cut(l.LogText(), "\ngoroutine 1 ")
	stack, _, _ = strings.Cut(stack, "\n\n")
	return stack
}

// LogText returns the gateway's log so far.
func (l *Lab) LogText() string {
	data, err := os.ReadFile(l.Log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Dial creates a client with the key of the gateway's first start.
func (l *Lab) Dial() (*api.Client, error) {
	key, err := os.ReadFile(filepath.Join(l.Dir, "state", "api-key"))
	if err != nil {
		return nil, err
	}
	return api.NewClient(l.Socket, strings.TrimSpace(string(key))), nil
}

// environ returns the environment for the lab's commands: the machine's, without the configuration of another gateway.
func (l *Lab) environ() []string {
	env := []string{"BOXGATE_CONFIG=" + l.Config}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, config.EnvironmentPrefix) && !strings.HasPrefix(e, "SYSTEMD_EXEC_PID=") { // of the process that runs the lab
			env = append(env, e)
		}
	}
	return env
}

// Command prepares `gateway args...` against the lab's gateway, to be run anywhere: the admin socket is a file.
func (l *Lab) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.Self, args...)
	cmd.Env = l.environ()
	return cmd
}

// Stop stops the gateway as a service manager would, and waits for it.
func (l *Lab) Stop() error {
	if l.Process == nil {
		return nil
	}
	_ = l.Process.Process.Signal(syscall.SIGTERM)
	select {
	case <-l.Exited:
	case <-time.After(time.Minute):
		l.Kill()
		return errors.New("the gateway did not stop within a minute and was killed")
	}
	l.Process = nil
	return l.stdin.Close()
}

// stopSoon is Stop with less time for running requests: it sends a second signal after a second.
func (l *Lab) stopSoon() error {
	if l.Process == nil {
		return nil
	}
	gateway := l.Process.Process
	again := time.AfterFunc(time.Second, func() { _ = gateway.Signal(syscall.SIGTERM) })
	defer again.Stop()
	return l.Stop()
}

// Kill kills the gateway with SIGKILL and waits for it.
func (l *Lab) Kill() {
	if l.Process == nil {
		return
	}
	_ = l.Process.Process.Kill()
	<-l.Exited
	_ = l.stdin.Close()
	l.Process = nil
}

// Close stops the gateway and removes the boxes and everything else that the lab created. Further calls are no-ops.
func (l *Lab) Close() error {
	errs := []error{l.stopSoon()}
	if l.Log != nil {
		errs = append(errs, l.Log.Close())
		l.Log = nil
	}
	if l.Net != nil {
		// A process that has replaced the gateway may still serve, and holds the files of the lab until it has exited.
		errs = append(errs, l.Net.Gateway().KillProcesses())
	}
	if l.Dir != "" {
		errs = append(errs, removeLabDir(l.Dir), l.lock.Close())
		l.Dir = ""
	}
	if l.Net != nil {
		errs = append(errs, l.Net.Close())
		l.Net = nil
	}
	return errors.Join(errs...)
}

// tail keeps the last 4 KiB written to it.
type tail struct {
	whole chan struct{} // closed when no more output can come
	mu    sync.Mutex
	buf   bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if extra := t.buf.Len() - 4096; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// SyncBuffer collects the output of a running command, so that other goroutines can wait for a part of it. The zero
// value is ready to use. Safe for concurrent use.
type SyncBuffer struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced by every write
}

// Write implements io.Writer.
func (b *SyncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return b.buf.Write(p)
}

// String returns the output so far.
func (b *SyncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Await returns when the output contains part, or with ctx's error.
func (b *SyncBuffer) Await(ctx context.Context, part string) error {
	for {
		b.mu.Lock()
		found := strings.Contains(b.buf.String(), part)
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// SearchLine returns a shell line that searches the environment, all of /proc and every file for the keys. One letter
// of each pattern is in brackets so that the search does not find itself in the process list.
func SearchLine(keys ...string) string {
	for i, key := range keys {
		keys[i] = key[:len(key)-1] + "[" + key[len(key)-1:] + "]"
	}
	pattern := strings.Join(keys, `\|`)
	return "env | grep -c '" + pattern + "'; " +
		"cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '" + pattern + "'; " +
		"grep -rl '" + pattern + "' / --exclude-dir=proc --exclude-dir=sys 2>/dev/null | wc -l"
}
