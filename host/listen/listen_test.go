package listen

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host/handover"
	"boxgate/host/netns"
	"boxgate/host/nslock"
	"boxgate/internal/nightly"
)

// TestTheNamespaceIsPassedOn: the lock passes from the gateway to its successor without a gap in which a third process
// could take it, and the successor's end leaves no files.
func TestTheNamespaceIsPassedOn(t *testing.T) {
	t.Parallel() // waits for lockPatience, three times
	inNamespace(t, passOn)
}

// inNamespace calls do in a new network namespace, with a configuration for it.
func inNamespace(t *testing.T, do func(*testing.T, config.Config, config.Addresses) error) {
	t.Helper()
	nightly.Root(t)
	ns, err := netns.New()
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
	if err := ns.Do(func() error { return do(t, cfg, a) }); err != nil {
		t.Fatal(err)
	}
}

func passOn(t *testing.T, cfg config.Config, a config.Addresses) error {
	old, err := Open(t.Context(), cfg, a, nil, nil)
	if err != nil {
		return err
	}
	refused := func(when string) {
		t.Helper()
		if l, err := Open(t.Context(), cfg, a, nil, nil); err == nil || !strings.Contains(err.Error(), "another gateway runs in this network namespace") {
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
	if err := old.Pass(ours, handover.Hello{}); err != nil {
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
	old.LeaveToSuccessor()
	old.CloseQuietly()
	next.Lock.Own()
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
	third, err := Open(t.Context(), cfg, a, nil, nil)
	if err == nil {
		third.Close()
	}
	return err
}

// TestQueriesDoNotWakeThePoller: the sockets that receive queries are not in the runtime's poller, whoever opened them.
func TestQueriesDoNotWakeThePoller(t *testing.T) {
	inNamespace(t, func(t *testing.T, cfg config.Config, a config.Addresses) error {
		l, err := Open(t.Context(), cfg, a, nil, nil)
		if err != nil {
			return err
		}
		defer l.Close()
		if len(l.DNSUDP) == 0 {
			t.Error("no sockets receive queries")
		}
		for _, u := range l.DNSUDP {
			_ = u.Close() // as the DNS server does when it takes over the socket
			var s unix.Stat_t
			if err := unix.Fstat(int(u.file.Fd()), &s); err != nil {
				return err
			}
			if polled(t, s.Ino) {
				t.Errorf("the poller has %s", u.file.Name())
			}
		}
		return nil
	})
}

// polled reports whether an epoll instance of this process contains a file with an inode.
func polled(t *testing.T, inode uint64) bool {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		text, _ := os.ReadFile(info) // it may have been closed
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "tfd:") && strings.Contains(line, fmt.Sprintf(" ino:%x ", inode)) {
				return true
			}
		}
	}
	return false
}

// TestAttackGroupOfUnknownProcesses: the group that stands for unmapped ones is not accepted as admin.group.
func TestAttackGroupOfUnknownProcesses(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]int{"": -1, "65534": -1, "0": 0} {
		got, err := GroupID(config.Admin{Group: group})
		if _, known := user.LookupGroupId("65534"); group == "65534" && known != nil {
			continue
		}
		if got != want || (err != nil) != (group == "65534") {
			t.Errorf("%q: %d, %v", group, got, err)
		}
	}
}
