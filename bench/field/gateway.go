package field

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"boxgate/api"
	"boxgate/bench/origin"
	"boxgate/internal/testnet"
)

// Resolver is the name server of every box: the first address of the pool.
const Resolver = "10.200.0.1:53"

// startTimeout bounds the start of a gateway with many boxes on a busy machine.
const startTimeout = 5 * time.Minute

// Gateway is `gateway serve` in its own namespace, and the box that generates the load.
type Gateway struct {
	Name    string
	Public  string // address on the upstream's side
	NS, Box *testnet.NS
	Routed  *testnet.NS // a box whose traffic the kernel forwards
	Client  *api.Client
	URL     Public
	Echo    Public // URL of the server that echoes WebSocket messages

	field  *Field
	binary string
	dir    string
	cmd    *exec.Cmd // nil if it is not running
	stdin  io.Closer // closing it makes the gateway exit
	exited chan struct{}
	boxes  []*testnet.NS // additional boxes
}

// Public is a public URL of the box.
type Public struct{ Host, Token string }

// settings is the configuration. The limits are raised because one box generates the load of many.
const settings = `state_dir: %[1]s/state
admin: {socket: %[1]s/admin.sock, listen: ""}
network: {protected_exempt: [203.0.113.0/24]}
dns: {upstreams: ["%[2]s:53"]}
proxy: {upstream_ca_files: [%[3]s]}
limits:
  memory: 2GiB
  connections: 20000
  new_connections_per_second: 100000
  interceptions: 20000
  streams: 20000
  requests_per_second: 1000000
  upstreams: 16000
  kernel_flows: 65536
  dns_queries_per_second: 1000000
ingress: {limits: {requests_per_second: 1000000}}
launcher: {images: {default: %[5]q}, image_dir: %[6]q, run_dir: %[4]s}
metrics: {listen: ""}
log: {level: info, format: json}
`

// Gateway creates the namespaces of a gateway and its box. [Gateway.Start] starts the process.
func (f *Field) Gateway(ctx context.Context, name, binary string) (*Gateway, error) {
	dir, err := f.NewDir(name)
	if err != nil {
		return nil, err
	}
	number := 10 + len(f.gateways)
	g := &Gateway{Name: name, Public: fmt.Sprintf("172.31.%d.2", number), field: f, binary: binary, dir: dir}
	f.gateways = append(f.gateways, g)
	for _, ns := range []**testnet.NS{&g.NS, &g.Box, &g.Routed} {
		if *ns, err = f.Namespace(ctx); err != nil {
			return nil, err
		}
	}
	upstream := fmt.Sprintf("172.31.%d.1", number)
	config := fmt.Sprintf(settings, dir, origin.Name, f.Certificates.Upstream.CA, g.runDir(), f.image(dir), f.Images)
	return g, errors.Join(
		os.MkdirAll(filepath.Join(dir, "root", "bin"), 0o755), // an image that no box uses
		connect(ctx, f.Upstream, upstream, g.NS, g.Public, fmt.Sprintf("gateway%d", number)),
		run(ctx, g.NS, "ip route add default via "+upstream),
		os.WriteFile(g.config(), []byte(config), 0o600))
}

// runDir returns the gateway's run directory, which is outside the field's directory.
func (g *Gateway) runDir() string {
	return filepath.Join(runRoot, filepath.Base(g.field.Dir)+"-"+g.Name)
}

func (g *Gateway) config() string { return filepath.Join(g.dir, "boxgate.yaml") }

// PID returns the process ID of the running gateway.
func (g *Gateway) PID() int { return g.cmd.Process.Pid }

// Start starts the gateway with its default settings, logging to a file, and returns when it is ready.
func (g *Gateway) Start(ctx context.Context) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	ready, err := g.listenForReady()
	if err != nil {
		return errors.Join(err, write.Close())
	}
	defer ready.Close()
	log, err := os.OpenFile(filepath.Join(g.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return errors.Join(err, write.Close())
	}
	defer log.Close()
	cmd := exec.Command(g.binary, "serve", "--config", g.config(), "--until-eof")
	cmd.Env = append(environment(), "NOTIFY_SOCKET="+ready.LocalAddr().String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = read, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the bench handles Ctrl-C
	if err := g.NS.Start(cmd); err != nil {
		return errors.Join(err, write.Close())
	}
	g.cmd, g.stdin, g.exited = cmd, write, make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(g.exited)
	}()
	return g.awaitReady(ctx, ready)
}

// environment returns the environment of this process without the configuration of another gateway.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "BOXGATE_") && !strings.HasPrefix(e, "SSL_CERT_") {
			env = append(env, e)
		}
	}
	return env
}

// listenForReady opens the socket on which the gateway reports readiness, as it does to systemd.
func (g *Gateway) listenForReady() (*net.UnixConn, error) {
	path := filepath.Join(g.dir, "notify.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
}

func (g *Gateway) awaitReady(ctx context.Context, ready *net.UnixConn) error {
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
	case <-g.exited:
		return fmt.Errorf("%s did not start: %s", g.Name, g.logEnd())
	case <-ctx.Done():
		return fmt.Errorf("%s did not become ready: %w", g.Name, ctx.Err())
	case <-reported:
	}
	key, err := g.key()
	if err != nil {
		return err
	}
	g.Client = api.NewClient(g.socket(), key)
	return g.Client.Do(ctx, "GET", "/readyz", nil, nil)
}

func (g *Gateway) socket() string { return filepath.Join(g.dir, "admin.sock") }

func (g *Gateway) key() (string, error) {
	key, err := os.ReadFile(filepath.Join(g.dir, "state", "api-key"))
	return strings.TrimSpace(string(key)), err
}

// logEnd returns the end of the gateway's log.
func (g *Gateway) logEnd() string {
	text, err := os.ReadFile(filepath.Join(g.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// Stop stops the gateway if it is running.
func (g *Gateway) Stop() error {
	if g.cmd == nil {
		return nil
	}
	err := errors.Join(g.stdin.Close(), terminate(g.cmd.Process, g.exited))
	g.cmd = nil
	return err
}

// terminate ends a process with SIGTERM and, if it does not exit in time, with SIGKILL.
func terminate(p *os.Process, exited <-chan struct{}) error {
	_ = p.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-exited:
		return nil
	case <-time.After(30 * time.Second):
	}
	_ = p.Kill()
	<-exited
	return fmt.Errorf("process %d had to be killed", p.Pid)
}

// Upstream returns the namespace in front of the gateway's public addresses.
func (g *Gateway) Upstream() *testnet.NS { return g.field.Upstream }
