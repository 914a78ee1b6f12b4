package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/host/apart"
)

// TestKeptSocketsAreUsedAgain: the next start has the ports of the one before, and whoever came in between.
func TestKeptSocketsAreUsedAgain(t *testing.T) {
	inNamespace(t, startAgain)
}

// keep returns the sockets of a gateway as the service manager keeps them, under their names.
func keep(t *testing.T, l *Listeners) map[string]*os.File {
	t.Helper()
	kept := map[string]*os.File{}
	for _, p := range l.passable {
		if !boundTo(p.conn).IsValid() {
			continue
		}
		fd, err := duplicate(p.conn)
		if err != nil {
			t.Fatal(err)
		}
		kept[p.name] = os.NewFile(uintptr(fd), p.name)
		t.Cleanup(func() { kept[p.name].Close() })
	}
	return kept
}

func startAgain(t *testing.T, cfg config.Config, a config.Addresses) error {
	cfg.Admin.Listen, cfg.Metrics.Listen = "127.0.0.1:0", "127.0.0.1:0"
	old, err := Listen(t.Context(), cfg, a, nil, nil)
	if err != nil {
		return err
	}
	kept := keep(t, old)
	at := old.metrics.Addr().String()
	dnsPort, proxyPort := old.dnsPort, old.proxyPort
	old.Close()
	visitor, err := net.Dial("tcp", at)
	if err != nil {
		return fmt.Errorf("nobody can connect while the gateway restarts: %w", err)
	}
	defer visitor.Close()
	cfg.Admin.Listen = "" // is not asked for any more
	l, err := Listen(t.Context(), cfg, a, nil, kept)
	if err != nil {
		return err
	}
	defer l.Close()
	if l.dnsPort != dnsPort || l.proxyPort != proxyPort || l.metrics.Addr().String() != at {
		t.Errorf("ports %d and %d, metrics at %v, want %d, %d, %s", l.dnsPort, l.proxyPort, l.metrics.Addr(), dnsPort, proxyPort, at)
	}
	if len(l.gone) != 1 || l.gone[0] != "admin.listen 127.0.0.1:0" {
		t.Errorf("the service manager is to close %q", l.gone)
	}
	_ = l.metrics.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	conn, err := l.metrics.Accept()
	if err != nil {
		return fmt.Errorf("who connected meanwhile is lost: %w", err)
	}
	return conn.Close()
}

// TestAttackByASocketOfAnotherNamespace: what a gateway of another network namespace has left is not used, nor its ports.
func TestAttackByASocketOfAnotherNamespace(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		cfg.Metrics.Listen = "127.0.0.1:9600"
		other, err := apart.New()
		if err != nil {
			return err
		}
		defer other.Close()
		var kept map[string]*os.File
		err = other.Do(func() error {
			ln, err := Listen(t.Context(), cfg, a, nil, nil)
			if err == nil {
				kept = keep(t, ln)
				ln.Close()
			}
			return err
		})
		if err != nil {
			return err
		}
		l, err := Listen(t.Context(), cfg, a, nil, kept)
		if err != nil {
			return err
		}
		defer l.Close()
		if len(l.gone) != len(kept) {
			t.Errorf("%d of %d sockets are given up", len(l.gone), len(kept))
		}
		conn, err := net.Dial("tcp", "127.0.0.1:9600")
		if err != nil {
			return errors.Join(errors.New("the gateway does not listen in its own namespace"), err)
		}
		return conn.Close()
	})
}
