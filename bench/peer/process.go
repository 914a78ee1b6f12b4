package peer

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/bench/field"
	"boxgate/bench/origin"
	"boxgate/internal/testnet"
)

//go:embed config
var configs embed.FS

// startTimeout bounds the start of a peer on a busy machine.
const startTimeout = time.Minute

// Process is a running program.
type Process struct {
	Name   string
	PID    int
	cmd    *exec.Cmd
	exited chan struct{}
	output bytes.Buffer // read only after it has exited
}

// Start runs the peer in the namespace of peers, and returns when it listens for all its roles.
func (p *Peer) Start(ctx context.Context, r Root, f *field.Field) (*Process, error) {
	e, err := r.environment(f, p.Name, p.Port)
	if err != nil {
		return nil, err
	}
	args, err := p.args(e)
	if err != nil {
		return nil, err
	}
	process, err := r.start(f.Peers, e, p.Name, cmp.Or(p.start, p.binary), args)
	if err != nil {
		return nil, err
	}
	for _, role := range p.Roles {
		if err := process.await(ctx, f.Peers, fmt.Sprintf("%s:%d", field.PeersListen, p.Port(role)), role == Resolve); err != nil {
			return nil, errors.Join(err, process.Stop())
		}
	}
	return process, nil
}

// Web runs nginx as the origin.
func (r Root) Web(ctx context.Context, f *field.Field) (*Process, error) {
	e, err := r.environment(f, "web", nil)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(e.Dir, "64m"), bytes.Repeat([]byte("0123456789abcdef"), 4<<20), 0o644); err != nil { //nolint:gosec // not a secret
		return nil, err
	}
	return r.nginx(ctx, f.Upstream, e, "web.conf", origin.Web+":443")
}

// Backend runs the servers behind public URLs in the namespace of a box or the client: nginx, and a server for
// WebSockets.
func (r Root) Backend(ctx context.Context, f *field.Field, ns *testnet.NS, name string) error {
	e, err := r.environment(f, "backend-"+name, nil)
	if err != nil {
		return err
	}
	if _, err := r.nginx(ctx, ns, e, "backend.conf", fmt.Sprintf("127.0.0.1:%d", field.BackendPort)); err != nil {
		return err
	}
	_, err = r.startOwn(ctx, ns, e, fmt.Sprintf("127.0.0.1:%d", field.EchoPort), "peer", "echo", fmt.Sprintf("0.0.0.0:%d", field.EchoPort))
	return err
}

// startOwn runs a server of this program and waits until it listens.
func (r Root) startOwn(ctx context.Context, ns *testnet.NS, e *environment, address string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process, err := r.start(ns, e, filepath.Base(e.Dir), self, args)
	if err == nil {
		err = process.await(ctx, ns, address, false)
	}
	return process, err
}

func (r Root) nginx(ctx context.Context, ns *testnet.NS, e *environment, config, address string) (*Process, error) {
	binary := r.find("nginx")
	if binary == "" {
		return nil, errors.New("nginx is missing, which is the origin: run dist/peers.sh")
	}
	args, err := nginx(config)(e)
	if err != nil {
		return nil, err
	}
	process, err := r.start(ns, e, config, binary, args)
	if err == nil {
		err = process.await(ctx, ns, address, false)
	}
	return process, err
}

// Origin runs the servers of package origin in a process of this program.
func (r Root) Origin(ctx context.Context, f *field.Field) (*Process, error) {
	e, err := r.environment(f, "origin", nil)
	if err != nil {
		return nil, err
	}
	process, err := r.startOwn(ctx, f.Upstream, e, origin.GRPC+":443", "origin", e.Upstream.Leaf, e.Upstream.LeafKey)
	if err != nil {
		return nil, err
	}
	return process, process.await(ctx, f.Upstream, origin.Name+":53", true)
}

func (r Root) environment(f *field.Field, name string, port func(Role) uint16) (*environment, error) {
	dir, err := f.NewDir(strings.ReplaceAll(name, "/", "-"))
	return &environment{
		Certificates: f.Certificates, Dir: dir, Header: origin.Header, Value: origin.Value, Suffix: origin.Suffix,
		Web: origin.Web, Sink: origin.Sink, GRPC: origin.GRPC, Name: origin.Name, Listen: field.PeersListen,
		Backend: fmt.Sprintf("%s:%d", field.ClientAddr, field.BackendPort), Echo: fmt.Sprintf("%s:%d", field.ClientAddr, field.EchoPort), Kilobyte: fmt.Sprintf(`{"data":"%s"}`, strings.Repeat("x", 1024-len(`{"data":""}`))),
		NginxModules: r.modules(), Squid: r.sharePath("usr/lib/squid"), SquidShare: r.sharePath("usr/share/squid"), Processors: runtime.NumCPU(), MaxConns: maxConns(), Splices: map[Role]string{Splice: origin.Hello, SpliceBulk: origin.Web},
		port: port, root: r,
	}, err
}

// maxConns returns the number of connections that fit a program with two and a half descriptors per connection.
func maxConns() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1000
	}
	return int(min(16000, (limit.Cur-1000)*2/5))
}

// modules returns the directory of nginx's modules.
func (r Root) modules() string {
	return r.sharePath("usr/lib/nginx/modules")
}

// sharePath returns a directory of a package, unpacked or installed.
func (r Root) sharePath(dir string) string {
	if path := filepath.Join(string(r), dir); isDir(path) {
		return path
	}
	return "/" + dir
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// render writes a configuration and returns its path.
func (e *environment) render(name string) (string, error) {
	functions := template.FuncMap{
		"port":  func(role Role) uint16 { return e.port(role) },
		"snake": func(role Role) string { return strings.ReplaceAll(string(role), "-", "_") },
	}
	t, err := template.New(name).Funcs(functions).Option("missingkey=error").ParseFS(configs, "config/"+name)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, e); err != nil {
		return "", err
	}
	path := filepath.Join(e.Dir, name)
	return path, os.WriteFile(path, text.Bytes(), 0o600)
}

// start runs a program in a namespace. The program gets SIGTERM when the bench dies for any reason.
func (r Root) start(ns *testnet.NS, e *environment, name, binary string, args []string) (*Process, error) {
	p := &Process{Name: name, cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.cmd.Dir = e.Dir
	p.cmd.Env = append(r.environ(), "HOME="+e.Dir, "XDG_DATA_HOME="+e.Dir, "XDG_CONFIG_HOME="+e.Dir)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := ns.Start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.PID = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// await waits until the program listens.
func (p *Process) await(ctx context.Context, ns *testnet.NS, address string, names bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := probe(ctx, ns, address, names)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			said := p.output.String()
			return fmt.Errorf("%s did not start: %s", p.Name, said[max(0, len(said)-500):])
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on %s: %w", p.Name, address, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// probe connects, or queries a name server if names is set.
func probe(ctx context.Context, ns *testnet.NS, address string, names bool) error {
	network := "tcp"
	if names {
		network = "udp"
	}
	c, err := ns.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if !names {
		return nil
	}
	client := dns.Client{Timeout: time.Second}
	_, _, err = client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion("ready."+origin.Suffix+".", dns.TypeA), &dns.Conn{Conn: c})
	return err
}

// Stop ends the program and its children with SIGTERM and, if it does not exit in time, with SIGKILL.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	if err := syscall.Kill(-p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%s: ending its children: %w", p.Name, err)
	}
	return nil
}

// moduleVersion returns the version of the module that defines a value's type.
func moduleVersion(v any) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	path := reflect.TypeOf(v).PkgPath()
	for _, m := range info.Deps {
		if path == m.Path || strings.HasPrefix(path, m.Path+"/") {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return "unknown"
}

// squid returns the peer squid, the only one that requires its own user, which may not enter /var/lib/boxgate. It gets
// a view of the file system in which that directory is readable and has only the needed files.
func (r Root) squid() *Peer {
	p := r.program("squid", "squid", "-v", squidArgs, Intercept)
	p.Explicit = true
	if p.binary != "" {
		p.start, _ = exec.LookPath("unshare") // part of util-linux; squid cannot start without it
	}
	return p
}

// opened runs a command that sees only the peers' and the run's directories below a readable /var/lib/boxgate.
const opened = `root=$1 run=$2; shift 2
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/root /mnt/run
mount --bind "$root" /mnt/root
mount --bind "$run" /mnt/run
mount -t tmpfs -o mode=755 none /var/lib/boxgate
mkdir -p "$root" "$run"
mount --move /mnt/root "$root"
mount --move /mnt/run "$run"
exec "$@"`

// squidArgs creates the certificate database, which belongs to squid's user.
func squidArgs(e *environment) ([]string, error) {
	path, err := e.render("squid.conf")
	database := filepath.Join(e.Dir, "certificates")
	if err := errors.Join(err, e.joinCA(filepath.Join(e.Dir, "ca.pem")), os.RemoveAll(database)); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(e.Squid, "security_file_certgen"), "-c", "-s", database, "-M", "64MB")
	cmd.Env = e.root.environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	squid, run := e.root.find("squid"), filepath.Dir(e.Dir)
	return []string{"-m", "sh", "-ec", opened, "sh", string(e.root), run, squid, "-N", "-f", path}, giveToProxy(e.Dir)
}

// giveToProxy gives a directory to the user proxy, which squid runs as and every Debian has.
func giveToProxy(dir string) error {
	u, err := user.Lookup("proxy")
	if err != nil {
		return err
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, gid))
	})
}

// StartTransparent runs the transparent listener that gets its connections from nftables, in its namespace.
func (r Root) StartTransparent(ctx context.Context, f *field.Field) (*Process, error) {
	e, err := r.environment(f, "steer", nil)
	if err != nil {
		return nil, err
	}
	return r.startOwn(ctx, f.TransparentHost, e, fmt.Sprintf("127.0.0.1:%d", field.TransparentPort), "peer", "steer", fmt.Sprintf("0.0.0.0:%d", field.TransparentPort))
}

// ServeTransparent accepts connections to foreign addresses, and joins each to its original destination.
func ServeTransparent(ctx context.Context, address string) error {
	transparent := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
		if failed != nil {
			return failed
		}
		return err
	}}
	ln, err := transparent.Listen(ctx, "tcp4", address)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go join(c)
	}
}

// join copies data between a connection and its original destination, which must be among the origins.
func join(c net.Conn) {
	defer c.Close()
	if !origins.Contains(c.LocalAddr().(*net.TCPAddr).IP) {
		return
	}
	up, err := net.Dial("tcp", c.LocalAddr().String())
	if err != nil {
		return
	}
	defer up.Close()
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
}

var _, origins, _ = net.ParseCIDR(origin.Network) // is valid
