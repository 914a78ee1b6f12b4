// Package peer runs the programs that boxgate is compared with, configured for speed as their own documentation
// recommends, and the nginx that serves as origin.
package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"

	"github.com/elazarl/goproxy"

	"boxgate/bench/field"
)

// Role is a kind of work that a program does for a client.
type Role string

// The roles.
const (
	Intercept   Role = "intercept"    // HTTP/1.1, intercepted, one header set
	InterceptH2 Role = "intercept-h2" // the same over HTTP/2 on both sides
	GRPC        Role = "grpc"         // the same for gRPC
	Upload      Role = "upload"       // requests with large bodies, intercepted
	Splice      Role = "splice"       // connections passed through by their server name
	SpliceBulk  Role = "splice-bulk"  // the same, to the web server
	Public      Role = "public"       // a TLS front with a bearer check before a plain server
	PublicH2    Role = "public-h2"    // the same for clients that speak HTTP/2
	WebSocket   Role = "websocket"    // the same before a server that echoes WebSocket messages
	Routed      Role = "routed"       // plain HTTP that the kernel forwards, with masquerading
	RoutedNew   Role = "routed-new"   // new connections that the kernel forwards
	Resolve     Role = "dns"          // a resolver that caches, forwards and refuses
)

// roles lists all roles. The index of a role determines its port.
var roles = []Role{Intercept, InterceptH2, GRPC, Upload, Splice, SpliceBulk, Public, PublicH2, WebSocket, Routed, RoutedNew, Resolve}

// Peer is a program to compare boxgate with.
type Peer struct {
	Name     string
	Version  string // "" if it was not found
	Explicit bool   // it is an explicit proxy, used by CONNECT
	Roles    []Role
	TLS      string // its TLS parameters, if they cannot be configured

	binary      string
	start       string // the command that starts it, if not binary
	versionFlag string
	base        uint16 // port of the first role
	args        func(e *environment) ([]string, error)
}

// Port returns the port on which a peer plays a role.
func (p *Peer) Port(r Role) uint16 { return p.base + uint16(slices.Index(roles, r)) }

// Plays reports whether the peer has a role.
func (p *Peer) Plays(r Role) bool { return slices.Contains(p.Roles, r) }

// Anchor is the peer that shows the limit of a Go program on this machine.
const Anchor = "minimal Go"

// Root is the directory of the unpacked packages.
type Root string

// All returns the peers. A peer that cannot be found has no version.
func (r Root) All(ctx context.Context) []*Peer {
	self, _ := os.Executable() // the path this program was started by
	mitm := r.program("mitmproxy", "mitmdump", "--version", mitmproxy, Intercept)
	mitm.TLS = "TLS 1.3 TLS_AES_256_GCM_SHA384 X25519 ECDSA"
	peers := []*Peer{
		{Name: Anchor, binary: self, args: minimalGo, Version: runtime.Version(), Roles: []Role{Intercept, InterceptH2, GRPC}},
		r.program("HAProxy", "haproxy", "-v", haproxy, Intercept, InterceptH2, GRPC, Upload, Splice, SpliceBulk, Public, PublicH2, WebSocket),
		r.program("nginx", "nginx", "-v", nginx("nginx.conf"), Intercept, GRPC, Upload, Splice, SpliceBulk, Public, PublicH2, WebSocket),
		{Name: "net/http", binary: self, args: netHTTP, Version: runtime.Version(), Roles: []Role{Intercept, InterceptH2, GRPC, Upload}},
		{Name: "goproxy", binary: self, args: goProxy, Version: moduleVersion(goproxy.ProxyHttpServer{}), Explicit: true, Roles: []Role{Intercept}},
		mitm,
		r.squid(),
		r.program("Caddy", "caddy", "version", caddy, Public, PublicH2, WebSocket),
		r.program("unbound", "unbound", "-V", unbound, Resolve),
		r.program("dnsmasq", "dnsmasq", "--version", dnsmasq, Resolve),
		r.program("CoreDNS", "coredns", "-version", coredns, Resolve),
	}
	for i, p := range peers {
		p.base = uint16(9100 + 50*i)
		if p.Version == "" && p.binary != "" {
			p.Version = r.version(ctx, p.binary, p.versionFlag)
		}
	}
	return peers
}

// program returns a peer that is an external program.
func (r Root) program(name, command, versionFlag string, args func(*environment) ([]string, error), roles ...Role) *Peer {
	return &Peer{Name: name, Roles: roles, binary: r.find(command), versionFlag: versionFlag, args: args}
}

// find returns the path of a program, unpacked or installed, or "".
func (r Root) find(name string) string {
	for _, dir := range []string{"usr/sbin", "usr/bin", "bin"} {
		path := filepath.Join(string(r), dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// environ returns an environment in which an unpacked program finds its libraries.
func (r Root) environ() []string {
	libraries, _ := filepath.Glob(filepath.Join(string(r), "usr/lib/*-linux-*")) // the pattern is valid
	path := filepath.Join(string(r), "lib")
	for _, dir := range libraries {
		path = dir + ":" + filepath.Join(string(r), "lib", filepath.Base(dir)) + ":" + path
	}
	return append(os.Environ(), "LD_LIBRARY_PATH="+path, "PYTHONPATH="+filepath.Join(string(r), "usr/lib/python3/dist-packages"))
}

// versionNumber matches the version in the output of any program.
var versionNumber = regexp.MustCompile(`\d+\.\d+(\.\d+)*`)

// version returns the version that a program reports, or "unknown" on an error or a timeout.
func (r Root) version(ctx context.Context, binary, flag string) string {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, flag)
	cmd.Env = r.environ()
	out, err := cmd.CombinedOutput()
	if number := versionNumber.FindString(string(out)); err == nil && number != "" {
		return number
	}
	return "unknown"
}

// environment holds the values for the templates of configurations.
type environment struct {
	field.Certificates
	Dir, Header, Value, Suffix string
	Web, Sink, GRPC, Name      string
	Listen, Backend, Echo      string
	Kilobyte                   string
	Squid, SquidShare          string // directories of its helpers and of its other files
	NginxModules               string
	Processors, MaxConns       int
	Splices                    map[Role]string
	port                       func(Role) uint16
	root                       Root
}

// haproxy and the following functions write a program's configuration and return its arguments.
func haproxy(e *environment) ([]string, error) {
	path, err := e.render("haproxy.cfg")
	return []string{"-db", "-f", path}, err
}

func nginx(config string) func(e *environment) ([]string, error) {
	return func(e *environment) ([]string, error) {
		path, err := e.render(config)
		return []string{"-e", "stderr", "-c", path}, err
	}
}

func caddy(e *environment) ([]string, error) {
	path, err := e.render("caddy.json")
	return []string{"run", "--config", path}, err
}

func unbound(e *environment) ([]string, error) {
	path, err := e.render("unbound.conf")
	return []string{"-d", "-c", path}, err
}

func coredns(e *environment) ([]string, error) {
	path, err := e.render("Corefile")
	return []string{"-conf", path}, err
}

func dnsmasq(e *environment) ([]string, error) {
	return []string{
		"-k", "-C", "/dev/null", "-p", strconv.Itoa(int(e.port(Resolve))), "-a", e.Listen, "-z", "-h", "-R", "-S", e.Name,
		"-c", "10000", "--dns-forward-max=2000", "--local=/denied.test/", "--user=root", "--pid-file=",
	}, nil
}

func mitmproxy(e *environment) ([]string, error) {
	confdir := filepath.Join(e.Dir, "mitmproxy")
	err := errors.Join(os.MkdirAll(confdir, 0o755), e.joinCA(filepath.Join(confdir, "mitmproxy-ca.pem")))
	return []string{
		"-q", "--mode", fmt.Sprintf("reverse:https://%s:443", e.Web), "--listen-host", "0.0.0.0", "-p", strconv.Itoa(int(e.port(Intercept))),
		"--set", "keep_host_header=true", "--set", "connection_strategy=lazy", "--set", "confdir=" + confdir, "--set", "ssl_verify_upstream_trusted_ca=" + e.Upstream.CA,
		"--set", fmt.Sprintf("modify_headers=|%s|%s", e.Header, e.Value), "--set", "stream_large_bodies=512k",
	}, err
}

func minimalGo(e *environment) ([]string, error) {
	return []string{
		"peer", "minimal", e.Peers.Leaf, e.Peers.LeafKey, e.Upstream.CA,
		endpoint(e, Intercept, e.Web), endpoint(e, InterceptH2, e.Web), endpoint(e, GRPC, e.GRPC),
	}, nil
}

// endpoint returns the argument that describes a role to a peer in this program: the role, its address, and the server
// behind it.
func endpoint(e *environment, r Role, to string) string {
	return fmt.Sprintf("%s=0.0.0.0:%d=%s:443", r, e.port(r), to)
}

// joinCA writes the certificate and the key of the peers' authority to one file.
func (e *environment) joinCA(path string) error {
	key, errKey := os.ReadFile(e.Peers.CAKey)
	cert, errCert := os.ReadFile(e.Peers.CA)
	return errors.Join(errKey, errCert, os.WriteFile(path, slices.Concat(key, cert), 0o600))
}

func goProxy(e *environment) ([]string, error) {
	return []string{"peer", "goproxy", fmt.Sprintf("0.0.0.0:%d", e.port(Intercept)), e.Peers.CA, e.Peers.CAKey, e.Upstream.CA}, nil
}

func netHTTP(e *environment) ([]string, error) {
	args := []string{"peer", "net/http", e.Peers.Leaf, e.Peers.LeafKey, e.Upstream.CA}
	to := map[Role]string{Intercept: e.Web, InterceptH2: e.Web, GRPC: e.GRPC, Upload: e.Sink}
	for _, r := range slices.Sorted(maps.Keys(to)) {
		args = append(args, endpoint(e, r, to[r]))
	}
	return args, nil
}
