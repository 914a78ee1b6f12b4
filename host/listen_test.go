package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/host/apart"
	"boxgate/host/handover"
	"boxgate/host/nslock"
)

// TestTheNamespaceIsPassedOn: from the gateway to its successor without an instant in which a third could take it, and the
// successor's end leaves nothing.
func TestTheNamespaceIsPassedOn(t *testing.T) {
	ns, err := apart.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	cfg := config.Default()
	cfg.Admin.Socket = filepath.Join(t.TempDir(), "admin.sock")
	a, err := config.AddressesOf(cfg.Network)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error { return passOn(t, cfg, a) }); err != nil {
		t.Fatal(err)
	}
}

func passOn(t *testing.T, cfg config.Config, a config.Addresses) error {
	old, err := Listen(t.Context(), cfg, a, nil)
	if err != nil {
		return err
	}
	refused := func(when string) {
		t.Helper()
		if l, err := Listen(t.Context(), cfg, a, nil); err == nil || !strings.Contains(err.Error(), "another gateway runs in this network namespace") {
			t.Errorf("%s: %v", when, err)
			if err == nil {
				l.Close()
			}
		}
	}
	refused("beside it")
	ours, file, err := handover.Pair()
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := handover.NewConn(file)
	if err != nil {
		return err
	}
	defer theirs.Close()
	if err := old.pass(ours, handover.Hello{}); err != nil {
		return err
	}
	hello, files, err := theirs.Greeted()
	if err != nil {
		return err
	}
	next, err := inherit(t.Context(), cfg, a, hello, files)
	if err != nil {
		return err
	}
	old.leave()
	old.closeQuietly()
	next.lock.Own()
	refused("after it was replaced")
	old.Close()
	refused("after it has ended")
	socket, err := nslock.Socket()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Error("commands do not find the successor:", err)
	}
	next.Close()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket is left:", err)
	}
	third, err := Listen(t.Context(), cfg, a, nil)
	if err == nil {
		third.Close()
	}
	return err
}
