package listen

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/host/netns"
)

// TestKeptSocketsAreUsedAgain: the next start keeps the ports, and the clients that connected in between.
func TestKeptSocketsAreUsedAgain(t *testing.T) {
	inNamespace(t, startAgain)
}

// passKept returns the sockets of a gateway as the service manager passes them on, by name, and the descriptors that the
// manager keeps.
func passKept(t *testing.T, l *Sockets) (passed, had map[string]*os.File) {
	t.Helper()
	passed, had = map[string]*os.File{}, map[string]*os.File{}
	for _, p := range l.passable {
		if !boundTo(p.conn).IsValid() {
			continue
		}
		for _, to := range []map[string]*os.File{passed, had} {
			fd, err := duplicate(p.conn)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), p.name)
			to[p.name] = f
			t.Cleanup(func() { _ = f.Close() })
		}
	}
	return passed, had
}

// passAgain returns the sockets as the service manager passes them on once more.
func passAgain(t *testing.T, had map[string]*os.File) map[string]*os.File {
	t.Helper()
	passed := map[string]*os.File{}
	for name, f := range had {
		fd, err := duplicate(f)
		if err != nil {
			t.Fatal(err)
		}
		passed[name] = os.NewFile(uintptr(fd), name)
		t.Cleanup(func() { _ = passed[name].Close() })
	}
	return passed
}

func startAgain(t *testing.T, cfg config.Config, a config.Addresses) error {
	cfg.Admin.Listen, cfg.Metrics.Listen = "127.0.0.1:0", "127.0.0.1:0"
	old, err := Open(t.Context(), cfg, a, nil, nil)
	if err != nil {
		return err
	}
	kept, _ := passKept(t, old)
	at := old.Metrics.Addr().String()
	dnsPort, proxyPort := old.DNSPort, old.ProxyPort
	old.Close()
	visitor, err := net.Dial("tcp", at)
	if err != nil {
		return fmt.Errorf("connecting while the gateway restarts: %w", err)
	}
	defer visitor.Close()
	cfg.Admin.Listen = "" // no longer configured
	l, err := Open(t.Context(), cfg, a, nil, kept)
	if err != nil {
		return err
	}
	defer l.Close()
	if l.DNSPort != dnsPort || l.ProxyPort != proxyPort || l.Metrics.Addr().String() != at {
		t.Errorf("ports %d and %d, metrics at %v, want %d, %d, %s", l.DNSPort, l.ProxyPort, l.Metrics.Addr(), dnsPort, proxyPort, at)
	}
	if len(l.closedNames) != 1 || l.closedNames[0] != "admin.listen 127.0.0.1:0" {
		t.Errorf("sockets to close: %q", l.closedNames)
	}
	_ = l.Metrics.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	conn, err := l.Metrics.Accept()
	if err != nil {
		return fmt.Errorf("a connection made during the restart was lost: %w", err)
	}
	return conn.Close()
}

// TestAttackByASocketOfAnotherNamespace: sockets and ports of a gateway in another network namespace are not used.
func TestAttackByASocketOfAnotherNamespace(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		cfg.Metrics.Listen = "127.0.0.1:9600"
		other, err := netns.New()
		if err != nil {
			return err
		}
		defer other.Close()
		var kept map[string]*os.File
		err = other.Do(func() error {
			ln, err := Open(t.Context(), cfg, a, nil, nil)
			if err == nil {
				kept, _ = passKept(t, ln)
				ln.Close()
			}
			return err
		})
		if err != nil {
			return err
		}
		l, err := Open(t.Context(), cfg, a, nil, kept)
		if err != nil {
			return err
		}
		defer l.Close()
		if len(l.closedNames) != len(kept) {
			t.Errorf("%d of %d sockets are given up", len(l.closedNames), len(kept))
		}
		conn, err := net.Dial("tcp", "127.0.0.1:9600")
		if err != nil {
			return errors.Join(errors.New("the gateway does not listen in its own namespace"), err)
		}
		return conn.Close()
	})
}

// TestKeptSocketsThatNobodyAsksForEndAtOnce: kept sockets that are not configured stop listening immediately, whatever
// the service manager does. Their ports become free, clients cannot connect to them, and the earlier configuration can
// open them again.
func TestKeptSocketsThatNobodyAsksForEndAtOnce(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		cfg.Admin.Listen, cfg.Metrics.Listen, cfg.Ingress.HTTP, cfg.Ingress.HTTPS = "127.0.0.1:8600", "127.0.0.1:9600", "127.0.0.1:8080", ""
		l, err := Open(t.Context(), cfg, a, nil, nil)
		if err != nil {
			return err
		}
		kept, had := passKept(t, l)
		l.Close()
		moved := cfg
		moved.Admin.Listen, moved.Metrics.Listen, moved.Ingress.HTTP = "", "0.0.0.0:9600", "127.0.0.1:8600"
		if l, err = Open(t.Context(), moved, a, nil, kept); err != nil {
			return err
		}
		for at, ln := range map[string]net.Listener{"127.0.0.1:8600": l.HTTP, "127.0.0.1:9600": l.Metrics} {
			if err := reaches(at, ln); err != nil {
				t.Error(err)
			}
		}
		if conn, err := net.Dial("tcp", "127.0.0.1:8080"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a socket that is not configured accepts: %v, %v", conn, err)
		}
		l.Close()
		if l, err = Open(t.Context(), cfg, a, nil, passAgain(t, had)); err != nil {
			return err
		}
		defer l.Close()
		for at, ln := range map[string]net.Listener{"127.0.0.1:8600": l.Admin[0], "127.0.0.1:9600": l.Metrics, "127.0.0.1:8080": l.HTTP} {
			if err := reaches(at, ln); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
}

// reaches connects to an address and accepts the connection on ln.
func reaches(at string, ln net.Listener) error {
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	accepted, err := ln.Accept()
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	return accepted.Close()
}

// TestASuccessorEndsWhatNobodyAsksFor: a successor shuts down sockets that are not configured once it serves, and not
// before, although the service manager has them.
func TestASuccessorEndsWhatNobodyAsksFor(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		cfg.Metrics.Listen = "127.0.0.1:9600"
		old, err := Open(t.Context(), cfg, a, nil, nil)
		if err != nil {
			return err
		}
		defer old.Close()
		passed, _ := passKept(t, old)
		cfg.Metrics.Listen = ""
		next, err := listen(t.Context(), cfg, a, nil, passedOn(t, old, &Sockets{inherited: passed, replaces: true}))
		if err != nil {
			return err
		}
		defer next.Close()
		if err := reaches("127.0.0.1:9600", old.Metrics); err != nil {
			t.Error("before the successor serves:", err)
		}
		old.LeaveToSuccessor()
		old.CloseQuietly()
		next.Keep(zap.NewNop())
		if conn, err := net.Dial("tcp", "127.0.0.1:9600"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a socket that is not configured accepts: %v, %v", conn, err)
		}
		return nil
	})
}

// passedOn also passes everything that is not an IP socket to the successor.
func passedOn(t *testing.T, old, next *Sockets) *Sockets {
	t.Helper()
	next.DNSPort, next.ProxyPort = old.DNSPort, old.ProxyPort
	for _, p := range old.passable {
		if boundTo(p.conn).IsValid() {
			continue
		}
		fd, err := duplicate(p.conn)
		if err != nil {
			t.Fatal(err)
		}
		next.inherited[p.name] = os.NewFile(uintptr(fd), p.name)
	}
	return next
}

// TestSocketsOfOneRunHaveOnePort: both address families share a port, even if some of the kept sockets are missing.
func TestSocketsOfOneRunHaveOnePort(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		old, err := Open(t.Context(), cfg, a, nil, nil)
		if err != nil {
			return err
		}
		_, had := passKept(t, old)
		old.Close()
		for _, missing := range []string{dnsName(a.GatewayV4), dnsName(a.GatewayV6), proxyName(loopback[0]), proxyName(loopback[1]), udpName(a.GatewayV4, 0)} {
			kept := passAgain(t, had)
			delete(kept, missing)
			l, err := Open(t.Context(), cfg, a, nil, kept)
			if err != nil {
				return fmt.Errorf("without %s: %w", missing, err)
			}
			for _, ln := range append(l.DNSTCP, l.Transparent...) {
				want := l.DNSPort
				if ln == l.Transparent[0] || ln == l.Transparent[1] {
					want = l.ProxyPort
				}
				if PortOf(ln) != want {
					t.Errorf("without %s: %v, want port %d", missing, ln.Addr(), want)
				}
			}
			for _, u := range l.DNSUDP {
				if at := boundTo(u.file); at.Port() != l.DNSPort {
					t.Errorf("without %s: queries are read at %v, want port %d", missing, at, l.DNSPort)
				}
			}
			l.Close()
		}
		return nil
	})
}
