package ssh

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"boxgate/internal/memory"
	"boxgate/policy/name"
	"boxgate/proxy/recovery"
	sshrule "boxgate/rule/ssh"
)

// The fuzz targets of this file send packets of any kind in any order to both sides of the gateway, inside the encryption.
// The library reads them in its own goroutines, where a panic ends the process, including the test.

// packets splits fuzz data into packets: each is preceded by its length in two bytes.
func packets(data []byte) (all [][]byte) {
	for len(data) >= 2 && len(all) < 64 {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		all, data = append(all, data[2:2+n]), data[2+n:]
	}
	return all
}

// written is the inverse of packets.
func written(all ...[]byte) (data []byte) {
	for _, p := range all {
		data = append(binary.BigEndian.AppendUint16(data, uint16(len(p))), p...)
	}
	return data
}

func word(m []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(m, n) }

// Messages of RFC 4252 and RFC 4254.
var (
	serviceRequest = text([]byte{5}, []byte("ssh-userauth"))
	noneRequest    = text(text(text([]byte{50}, []byte("git")), []byte("ssh-connection")), []byte("none"))
	openSession    = word(word(word(text([]byte{90}, []byte("session")), 0), 1<<21), 1<<15)
	confirmed      = word(word(word(word([]byte{91}, 0), 0), 1<<21), 1<<15)
	execRequest    = text(append(text(word([]byte{98}, 0), []byte("exec")), 1), []byte("git-upload-pack 'a/b'"))
	exitStatus     = word(append(text(word([]byte{98}, 0), []byte("exit-status")), 0), 1)
	channelData    = text(word([]byte{94}, 0), []byte("data"))
	extendedData   = text(word(word([]byte{95}, 0), 1), []byte("oops"))
	adjusted       = word(word([]byte{93}, 0), 1<<31)
	keepalive      = append(text([]byte{80}, []byte("keepalive@openssh.com")), 1)
)

// seeds adds sequences that are valid, or nearly.
func seeds(f *testing.F) {
	channel := func(kind byte, id uint32) []byte { return word([]byte{kind}, id) }
	f.Add(written())
	f.Add(written(openSession, execRequest, channelData, adjusted, extendedData, channel(96, 0), channel(97, 0)))
	f.Add(written(confirmed, channel(99, 0), exitStatus, channelData, channel(96, 0), channel(97, 0), channel(97, 0), channelData))
	f.Add(written(keepalive, []byte{81}, []byte{82}, []byte{81, 0, 0, 0, 1}, text([]byte{80}, nil)))
	f.Add(written(text(text(word(channel(92, 0), 2), []byte("no")), nil), channel(100, 0), channel(99, 77), channel(93, 0)))
	f.Add(written(kexInit(), text([]byte{30}, make([]byte, 32)), []byte{21}))
	f.Add(written(bytes.Replace(kexInit(), []byte("curve25519-sha256"), []byte("curve25519-none56"), 1))) // no common algorithm
	f.Add(written(kexInit(), kexInit(), channelData, []byte{21}, []byte{21}))
	f.Add(written([]byte{}, []byte{0}, []byte{255}, []byte{1, 0, 0, 0, 2}, []byte{2}, []byte{3}, []byte{4, 1}, []byte{192}, []byte{193}))
	f.Add(written(text(word([]byte{7}, 1), []byte("server-sig-algs")), []byte{6}, serviceRequest, noneRequest, []byte{51}, []byte{52}, []byte{53}, []byte{60}, []byte{61}))
	f.Add(written(text(append(word(text([]byte{90}, []byte("forwarded-tcpip")), 1<<31), make([]byte, 8)...), make([]byte, 8)), openSession, openSession, openSession))
}

// ends is a minimal login with the server of serve.
type ends struct {
	login  Login
	budget *memory.Budget
	host   gossh.Signer // the server's
}

func newEnds(f testing.TB) *ends {
	f.Helper()
	signer := func() gossh.Signer {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			f.Fatal(err)
		}
		s, err := gossh.NewSignerFromSigner(key)
		if err != nil {
			f.Fatal(err)
		}
		return s
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	block, err := gossh.MarshalPrivateKey(key, "")
	if err != nil {
		f.Fatal(err)
	}
	hostName, err := name.Parse("git.example.com")
	if err != nil {
		f.Fatal(err)
	}
	e := &ends{host: signer(), budget: memory.New(256<<20, 256<<20)}
	e.login = Login{
		Rule: &sshrule.Login{User: "git", HostKeys: []sshrule.HostKey{{Blob: string(e.host.PublicKey().Marshal())}}}, Box: "box", Host: hostName, Port: 22, Identity: signer(),
		Key: func(context.Context) (name.Secret, error) {
			return name.NewSecret(string(pem.EncodeToMemory(block))), nil
		},
		Memory: e.budget.Account("box"), OnLogin: func() {}, OnRequest: func(Request) (func(Outcome), bool) { return func(Outcome) {}, true },
		Log: zap.NewNop(), Handshake: 20 * time.Second, Idle: 20 * time.Second,
	}
	return e
}

// run serves a box until it has ended. box and server close their connections.
func (e *ends) run(t *testing.T, box, server func(net.Conn)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inside, client := pair(t)
	login := e.login
	var both sync.WaitGroup
	login.Dial = func(context.Context) (net.Conn, error) {
		up, at := pair(t)
		both.Go(func() { server(at) })
		return up, nil
	}
	both.Go(func() { box(client) })
	_ = Serve(ctx, inside, login)
	_ = inside.Close()
	if ctx.Err() != nil {
		t.Error("the gateway does not end a connection that both sides have left")
	}
	both.Wait()
	for _, k := range memory.Kinds() {
		if held := e.budget.InUse(k); held != 0 {
			t.Errorf("%d bytes of %v are still reserved", held, k)
		}
	}
}

// pair returns the two ends of a socket pair: a fuzzer would use up the ports of a network.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		_ = file.Close()
	}
	return ends[0], ends[1]
}

// drain reads packets until the other side has closed.
func (w *wire) drain() {
	for {
		if _, err := w.read(); err != nil {
			return
		}
	}
}

// await reads packets up to one of the given kind, or the end.
func (w *wire) await(kind byte) {
	for {
		if p, err := w.read(); err != nil || len(p) > 0 && p[0] == kind {
			return
		}
	}
}

// say sends packets, then half-closes, and reads until the other side has closed.
func (w *wire) say(all [][]byte) {
	var reading sync.WaitGroup
	reading.Go(w.drain)
	for _, p := range all {
		if w.write(p) != nil {
			break
		}
	}
	if half, ok := w.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	reading.Wait()
}

// command is a box that runs a command.
func command(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	conn, channels, requests, err := gossh.NewClientConn(c, "", &gossh.ClientConfig{User: "git", HostKeyCallback: gossh.InsecureIgnoreHostKey()})
	if err != nil {
		return
	}
	client := gossh.NewClient(conn, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return
	}
	_, _ = session.CombinedOutput("git-upload-pack 'a/b'")
}

// echo is a server that accepts everyone, and whose commands echo their input.
func (e *ends) echo(c net.Conn) {
	defer c.Close()
	config := &gossh.ServerConfig{NoClientAuth: true, PublicKeyCallback: func(gossh.ConnMetadata, gossh.PublicKey) (*gossh.Permissions, error) { return nil, nil }}
	config.AddHostKey(e.host)
	_, channels, requests, err := gossh.NewServerConn(c, config)
	if err != nil {
		return
	}
	go gossh.DiscardRequests(requests)
	for asked := range channels {
		channel, requests, err := asked.Accept()
		if err != nil {
			continue
		}
		go func() {
			for r := range requests {
				_ = r.Reply(true, nil)
			}
		}()
		go func() {
			buf := make([]byte, 1024)
			for {
				n, err := channel.Read(buf)
				if err != nil {
					_ = channel.Close()
					return
				}
				_, _ = channel.Write(buf[:n])
			}
		}()
	}
}

// TestPacketsReachSessions: packets of the fuzz targets are read by both sides of the gateway in each stage.
func TestPacketsReachSessions(t *testing.T) {
	t.Parallel()
	e := newEnds(t)
	wants := func(w *wire, kind byte) {
		t.Helper()
		for {
			p, err := w.read()
			if err != nil {
				t.Errorf("no message %d: %v", kind, err)
				return
			}
			if len(p) > 0 && p[0] == kind {
				return
			}
		}
	}
	ask := func(w *wire, kind byte, p []byte) {
		t.Helper()
		if err := w.write(p); err != nil {
			t.Error(err)
			return
		}
		wants(w, kind)
	}
	e.run(t, func(c net.Conn) {
		defer c.Close()
		w, err := exchangeKeys(c, nil)
		if err != nil {
			t.Error(err)
			return
		}
		ask(w, 6, serviceRequest)
		ask(w, 52, noneRequest)
		ask(w, 91, openSession)
		ask(w, 99, execRequest)
		ask(w, 94, channelData)
		ask(w, 82, keepalive)
	}, e.echo)
	e.run(t, command, func(c net.Conn) {
		defer c.Close()
		w, err := exchangeKeys(c, e.host)
		if err != nil {
			t.Error(err)
			return
		}
		wants(w, 5)
		ask(w, 50, text([]byte{6}, []byte("ssh-userauth")))
		ask(w, 90, []byte{52})
		ask(w, 98, confirmed)
		ask(w, 97, word([]byte{97}, 0))
	})
}

// broken is a connection whose Write panics.
type broken struct{ net.Conn }

func (broken) Write([]byte) (int, error) { panic("canary") }

// TestPanicInAHandshake: a panic in the library during a handshake ends that login only, with an error.
func TestPanicInAHandshake(t *testing.T) {
	t.Parallel()
	e := newEnds(t)
	inside, client := pair(t)
	defer client.Close()
	defer inside.Close()
	if err := Serve(t.Context(), broken{inside}, e.login); !errors.Is(err, recovery.ErrFault) {
		t.Errorf("a box: %v", err)
	}
	login := e.login
	login.Dial = func(context.Context) (net.Conn, error) {
		up, _ := pair(t)
		return broken{up}, nil
	}
	inside, client = pair(t)
	var box sync.WaitGroup
	box.Go(func() { command(client) })
	var failed *Failure
	if err := Serve(t.Context(), inside, login); !errors.As(err, &failed) || !errors.Is(failed.Err, recovery.ErrFault) || failed.Reason != name.ReasonUpstreamLogin {
		t.Errorf("a server: %v", err)
	}
	_ = inside.Close()
	box.Wait()
	for _, k := range memory.Kinds() {
		if held := e.budget.InUse(k); held != 0 {
			t.Errorf("%d bytes of %v are still reserved", held, k)
		}
	}
}

// silent is a server that does not answer.
type silent struct{ gossh.Conn }

func (silent) OpenChannel(string, []byte) (gossh.Channel, <-chan *gossh.Request, error) { select {} }

// TestServerThatLeavesAsItIsAsked: opening a session fails when the connection to the server ends, even if the library
// keeps waiting.
func TestServerThatLeavesAsItIsAsked(t *testing.T) {
	t.Parallel()
	c := &conn{server: silent{}, gone: make(chan struct{})}
	ended := make(chan bool)
	go func() {
		_, _, opened := c.openSession()
		ended <- opened
	}()
	close(c.gone)
	select {
	case opened := <-ended:
		if opened {
			t.Error("a session is open at a server that is gone")
		}
	case <-time.After(time.Minute):
		t.Error("the command still waits for a server that is gone")
	}
	e := newEnds(t)
	for range 200 { // often enough that some hit the race
		e.run(t, command, func(c net.Conn) {
			defer c.Close()
			if w, err := exchangeKeys(c, e.host); err == nil {
				w.say([][]byte{text([]byte{6}, []byte("ssh-userauth")), {52}})
			}
		})
	}
}

// FuzzPacketsOfBoxes: a box sends arbitrary packets after the key exchange, before or after the login.
func FuzzPacketsOfBoxes(f *testing.F) {
	seeds(f)
	e := newEnds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, first := range [][][]byte{nil, {serviceRequest, noneRequest}} {
			e.run(t, func(c net.Conn) {
				defer c.Close()
				w, err := exchangeKeys(c, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if raced {
					_ = w.write(serviceRequest)
					w.await(6)
					first = first[min(len(first), 1):]
				}
				w.say(append(first, packets(data)...))
			}, e.echo)
		}
	})
}

// FuzzPacketsOfServers: a server sends arbitrary packets after the key exchange, before or after the login, while a box
// runs a command.
func FuzzPacketsOfServers(f *testing.F) {
	seeds(f)
	e := newEnds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, first := range [][][]byte{nil, {text([]byte{6}, []byte("ssh-userauth")), {52}}} {
			e.run(t, command, func(c net.Conn) {
				defer c.Close()
				w, err := exchangeKeys(c, e.host)
				if err != nil {
					t.Error(err)
					return
				}
				if raced {
					w.await(5)
				}
				w.say(append(first, packets(data)...))
			})
		}
	})
}
