package fault

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// siege attacks forbidden addresses from every box of a world in every way, from the moment its network namespace can
// be entered until stop.
type siege struct {
	w       *harness.World
	targets [2]netip.Addr
	hello   [2][]byte // a ClientHello with an allowed name, one with a denied name
	query   []byte    // a DNS query

	done  chan struct{}
	wg    sync.WaitGroup
	sent  atomic.Int64 // attempts
	boxes atomic.Int64 // number of boxes that took part
}

// pause is the time between two rounds of a box. A longer opening is detected.
var pause = nightly.Size(10*time.Millisecond, time.Millisecond)

// besiege starts a siege.
func besiege(w *harness.World, targets [2]netip.Addr) *siege {
	w.T.Helper()
	s := &siege{w: w, targets: targets, done: make(chan struct{})}
	s.hello = [2][]byte{helloFor("api.example.com"), helloFor("evil.example.net")}
	var err error
	if s.query, err = new(mdns.Msg).SetQuestion("evil.example.net.", mdns.TypeA).Pack(); err != nil {
		w.T.Fatal(err)
	}
	s.wg.Go(s.watch)
	w.T.Cleanup(func() { s.stop() })
	return s
}

// stop ends the siege and returns how often something was sent, or tried to be. It may be called twice.
func (s *siege) stop() int {
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	s.wg.Wait()
	return int(s.sent.Load())
}

func (s *siege) stopped() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// watch waits for the namespaces of new boxes.
func (s *siege) watch() {
	known := map[string]uint64{} // the inode of the namespace
	pins := [...]pinDir{{path: filepath.Join(lab.RunDir(s.w.Dir), "netns")}, {path: filepath.Join(lab.RunDir(s.w.Dir), "attached")}}
	for !s.stopped() {
		for _, path := range append(pins[0].list(), pins[1].list()...) {
			inode := inodeAt(path)
			if inode == 0 || known[path] == inode {
				continue
			}
			if pin, err := os.Open(path); err == nil && s.attackFrom(path, inode, pin) {
				known[path] = inode
			}
		}
		time.Sleep(time.Millisecond) // a new namespace has no link for longer than that
	}
}

// pinDir is a directory of namespaces. It is checked a thousand times a second.
type pinDir struct {
	path    string
	paths   []string  // entries at the last read
	changed time.Time // modification time of the directory at that read
}

// list returns the paths in the directory. It reads the directory again if it has changed, or may have changed within
// the resolution of its time stamp, which is some milliseconds.
func (d *pinDir) list() []string {
	const ticks = 50 * time.Millisecond
	info, err := os.Stat(d.path)
	if err != nil {
		return nil
	}
	if changed := info.ModTime(); !changed.Equal(d.changed) || time.Since(changed) < ticks {
		d.paths, _ = filepath.Glob(filepath.Join(d.path, "*"))
		d.changed = changed
	}
	return slices.Clip(d.paths)
}

// inodeAt returns the inode number at a path, or 0 if there is none.
func inodeAt(path string) uint64 {
	var st unix.Stat_t
	_ = unix.Stat(path, &st)
	return st.Ino
}

// attackFrom attacks from a namespace for as long as its box exists. It returns false if there is no namespace yet.
func (s *siege) attackFrom(path string, inode uint64, pin *os.File) bool {
	entered := make(chan bool)
	s.wg.Go(func() {
		defer pin.Close()
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Setns(int(pin.Fd()), unix.CLONE_NEWNET) != nil {
			entered <- false
			return
		}
		entered <- true
		s.boxes.Add(1)
		for !s.stopped() {
			for _, to := range s.targets {
				s.round(to)
			}
			if inodeAt(path) != inode {
				return
			}
			time.Sleep(pause)
		}
	})
	return <-entered
}

// round tries every way once.
func (s *siege) round(to netip.Addr) {
	s.datagram(to, 4444, []byte("siege"))
	s.datagram(to, 443, []byte("siege"))
	s.datagram(to, 53, s.query)
	s.stream(to, 443, s.hello[0])
	s.stream(to, 443, s.hello[1])
	s.stream(to, 80, []byte("GET /siege HTTP/1.1\r\nHost: api.example.com\r\n\r\n"))
	s.stream(to, 4444, []byte("siege"))
}

// datagram and stream make the system calls themselves: with package net, the test would do most of the work of a
// round.

func (s *siege) datagram(to netip.Addr, port uint16, payload []byte) {
	s.sent.Add(1)
	if fd, err := unix.Socket(domainOf(to), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
		_ = unix.Sendto(fd, payload, unix.MSG_DONTWAIT, socketAddr(to, port))
		unix.Close(fd)
	}
}

func (s *siege) stream(to netip.Addr, port uint16, payload []byte) {
	s.sent.Add(1)
	fd, err := unix.Socket(domainOf(to), unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, socketAddr(to, port))
	if errors.Is(err, unix.EINPROGRESS) {
		const most = 3 // milliseconds
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, most)
	}
	if err == nil {
		_, _ = unix.Write(fd, payload) // fails unless it is connected
	}
}

func domainOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func socketAddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

// helloFor returns a ClientHello of crypto/tls.
func helloFor(name string) []byte {
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = tls.Client(client, &tls.Config{ServerName: name}).HandshakeContext(ctx)
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		panic(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		panic(err)
	}
	return append(head, body...)
}
