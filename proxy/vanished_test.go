package proxy_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5/pgconn"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/internal/nightly"
	"boxgate/internal/socket"
	"boxgate/internal/socket/sockettest"
	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/tunnel"
)

// vanishing is a rig with a server that will vanish from the network.
type vanishing struct {
	*proxytest.Rig
	kept     chan net.Conn       // the gateway's connections to the server
	patience func(*proxy.Config) // configures the gateway
	most     time.Duration       // maximum time until the gateway notices
}

func newVanishing(t *testing.T, patience time.Duration) *vanishing {
	t.Helper()
	v := &vanishing{kept: make(chan net.Conn, 10), patience: func(c *proxy.Config) { c.LostAfter = patience }, most: time.Minute + 3*patience}
	v.Rig = proxytest.New(t, proxytest.AllowAll, proxytest.Patient, v.patience)
	return v
}

// served is a connection of a box to the server. say sends more data, which is echoed, or returns an error.
type served struct {
	say  func() error
	conn io.Reader // ends with the connection; nil: say waits for the answer
}

// echo sends a greeting and then echoes.
func (v *vanishing) echo(c net.Conn, in io.Reader) {
	v.kept <- c
	if _, err := io.WriteString(c, "hello\n"); err == nil {
		_, _ = io.Copy(c, in)
	}
}

// bare is a connection to a server that sends a greeting.
func (v *vanishing) bare(to netip.AddrPort, first string) served {
	c := v.Dial(to)
	_, _ = io.WriteString(c, first)
	greeting := make([]byte, len("hello\n"+first))
	if _, err := io.ReadFull(c, greeting); string(greeting) != "hello\n"+first {
		v.T.Fatalf("%q, %v", greeting, err)
	}
	_ = c.SetDeadline(time.Now().Add(v.most))
	return served{conn: c, say: func() error { _, err := io.WriteString(c, "anybody?"); return err }}
}

// byProxy is a connection through an upstream proxy, which vanishes.
func (v *vanishing) byProxy(scheme string) served {
	port := v.RawServer(scheme == "https", func(c net.Conn, in *bufio.Reader) {
		if _, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			v.echo(c, in)
		}
	})
	v.Names.SetOthers(proxytest.Loopback)
	v.Policy(policy.Spec{Mode: policy.ModeAllowAll, UpstreamProxy: &policy.UpstreamSpec{URL: fmt.Sprintf("%s://proxy.test:%d", scheme, port)}}, nil)
	return v.bare(netip.MustParseAddrPort("127.0.0.1:7"), "first")
}

func (v *vanishing) postgres() served {
	t := v.T.(*testing.T)
	r, s, dst := pgRig(t, dbRule)
	s.kept, v.Rig = v.kept, r
	v.With(v.patience)
	ctx, cancel := context.WithTimeout(t.Context(), v.most)
	t.Cleanup(cancel)
	c, err := pgconn.ConnectConfig(ctx, psql(v.Rig, dst))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Conn().SetDeadline(time.Now().Add(v.most))
	return served{say: func() error { _, err := c.Exec(ctx, "select").ReadAll(); return err }}
}

// signers returns the same SSH key for every box.
type signers struct{ ed25519.PrivateKey }

func (s signers) SSHKey(policy.BoxID) (crypto.Signer, error) { return s.PrivateKey, nil }

// sshKey returns a new key, and its text.
func sshKey(t testing.TB) (ed25519.PrivateKey, gossh.Signer, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := gossh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return key, signer, string(pem.EncodeToMemory(block))
}

// ssh is a command that echoes its input.
func (v *vanishing) ssh() served {
	t := v.T
	own, _, text := sshKey(t)
	_, host, _ := sshKey(t)
	v.With(func(c *proxy.Config) {
		c.SSHKeys, c.Secrets = signers{own}, proxytest.Sources{"key": proxytest.Fixed(text)}
	})
	dst := v.Server(0, func(c net.Conn) {
		v.kept <- c
		sshEcho(c, host)
	})
	const name = "git.example.com"
	v.Names.Set(name, dst.Addr())
	v.Names.Grant(name, dst.Addr())
	v.Rules(proxytest.AllowAll, fmt.Sprintf(`{"%s:%d": {"ssh": {"user": "git", "key": {"secret": "key"}, "host_keys": [%q]}}}`,
		name, dst.Port(), gossh.MarshalAuthorizedKey(host.PublicKey())))
	c := v.Dial(dst)
	_ = c.SetDeadline(time.Now().Add(v.most))
	conn, channels, requests, err := gossh.NewClientConn(c, name, &gossh.ClientConfig{User: "git", HostKeyCallback: gossh.InsecureIgnoreHostKey()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gossh.NewClient(conn, channels, requests).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	in, failed := s.StdinPipe()
	out, err := s.StdoutPipe()
	if err = errors.Join(failed, err, s.Start("cat")); err != nil {
		t.Fatal(err)
	}
	return served{conn: out, say: func() error { _, err := io.WriteString(in, "anybody?"); return err }}
}

// sshEcho serves a connection on which every command echoes its input.
func sshEcho(c net.Conn, key gossh.Signer) {
	defer c.Close()
	config := &gossh.ServerConfig{PublicKeyCallback: func(gossh.ConnMetadata, gossh.PublicKey) (*gossh.Permissions, error) { return nil, nil }}
	config.AddHostKey(key)
	_, channels, requests, err := gossh.NewServerConn(c, config)
	if err != nil {
		return
	}
	go gossh.DiscardRequests(requests)
	for asked := range channels {
		channel, requests, err := asked.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range requests {
				_ = r.Reply(true, nil)
			}
		}()
		go func() { _, _ = io.Copy(channel, channel) }()
	}
}

// webSocketServer is a WebSocket server that passes its connections to kept.
func (v *vanishing) webSocketServer() uint16 {
	port := v.RawServer(true, func(c net.Conn, in *bufio.Reader) {
		v.kept <- c
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, 4.2.2
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(sum[:]))
		_, _ = io.Copy(io.Discard, in)
	})
	v.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	return port
}

func (v *vanishing) webSocket() served {
	port := v.webSocketServer()
	ctx, cancel := context.WithTimeout(v.T.Context(), v.most)
	v.T.Cleanup(cancel)
	client := v.HTTPClient(port, false)
	client.Timeout = 0
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { _ = c.CloseNow() })
	return served{conn: websocket.NetConn(ctx, c, websocket.MessageText), say: func() error { return c.Write(ctx, websocket.MessageText, []byte("anybody?")) }}
}

// webSocketHTTP2 is a WebSocket inside HTTP/2 (RFC 8441).
func (v *vanishing) webSocketHTTP2() served {
	port := v.webSocketServer()
	//lint:ignore SA1019 net/http's own client refuses the field :protocol
	client, err := (&http2.Transport{}).NewClientConn(v.DialPair(proxytest.API, port, true, "h2")) // which has a minute
	if err != nil {
		v.T.Fatal(err)
	}
	body, in := io.Pipe()
	req, err := http.NewRequestWithContext(v.T.Context(), http.MethodConnect, "https://"+proxytest.HostPort(port)+"/", body)
	if err != nil {
		v.T.Fatal(err)
	}
	req.Header[":protocol"] = []string{"websocket"}
	req.Header.Set("Sec-WebSocket-Version", "13")
	res, err := client.RoundTrip(req)
	if err != nil || res.StatusCode != http.StatusOK {
		v.T.Fatal(res, err)
	}
	return served{conn: res.Body, say: func() error { _, err := in.Write([]byte("\x81\x82\x00\x00\x00\x00hi")); return err }}
}

// passages are the ways in which data passes to servers without being judged request by request.
var passages = map[string]func(v *vanishing) served{
	"passed on": func(v *vanishing) served {
		return v.bare(v.Server(0, func(c net.Conn) { v.echo(c, c) }), "first")
	},
	"passed on, the server first": func(v *vanishing) served {
		v.With(func(c *proxy.Config) { c.SilenceTimeout = 10 * time.Millisecond })
		return v.bare(v.Server(0, func(c net.Conn) { v.echo(c, c) }), "")
	},
	"by an upstream proxy":          func(v *vanishing) served { return v.byProxy("http") },
	"by an upstream proxy over TLS": func(v *vanishing) served { return v.byProxy("https") },
	"PostgreSQL":                    (*vanishing).postgres,
	"SSH":                           (*vanishing).ssh,
	"WebSocket":                     (*vanishing).webSocket,
	"WebSocket over HTTP/2":         (*vanishing).webSocketHTTP2,
}

// acknowledged reports whether the peer has acknowledged all data sent on a connection.
func acknowledged(c *net.TCPConn) (all bool) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			all = err == nil && info.Unacked == 0
		})
	}
	return all
}

// vanish makes the server of a passage vanish, and sends data to it.
func (v *vanishing) vanish(s served) error {
	v.T.Helper()
	c := <-v.kept
	tcp, ok := socket.TCP(c)
	if !ok {
		v.T.Fatal("no TCP connection")
	}
	_ = tcp.SetKeepAlive(false) // its probes after that would count as acknowledgements
	proxytest.Await(v.T, "acknowledgements", func() bool { return acknowledged(tcp) })
	sockettest.Vanish(v.T, c)
	if err := s.say(); s.conn == nil || err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, s.conn)
	return err
}

// testVanishing makes servers vanish that may leave data unacknowledged for patience: their connections are closed, and the
// events give the reason.
func testVanishing(t *testing.T, patience time.Duration) {
	for name, reach := range passages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVanishing(t, patience)
			if err := v.vanish(reach(v)); errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
				t.Fatal("it is not cut: ", err)
			}
			v.Want("the end", func(e audit.Event) bool { return e.Error == tunnel.ErrLost.Error() && e.Phase != audit.PhaseOpen })
		})
	}
}

// TestServersVanish tests with a limit of one second.
func TestServersVanish(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	testVanishing(t, time.Second)
}

// TestServersVanishForGood waits for the kernel's own timers and the gateway's default limit.
func TestServersVanishForGood(t *testing.T) {
	nightly.Root(t)
	nightly.Only(t)
	t.Parallel()
	testVanishing(t, socket.LostAfter)
}
