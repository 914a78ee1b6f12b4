package dns

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// withoutDescriptors calls f while the process has no free file descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	free, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free), Max: before.Max}); err != nil { // all lower ones are in use
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}()
	if _, err := os.Open(os.DevNull); !errors.Is(err, unix.EMFILE) {
		t.Errorf("a file can be opened, or not for another reason: %v", err)
	}
	f()
}

// TestAServerEndsWithoutDescriptors checks that a server without free descriptors still ends its reads. Otherwise a
// gateway would read the queries of its successor, under policies that no longer change. The limit applies to the
// process, so no other test may run at the same time.
func TestAServerEndsWithoutDescriptors(t *testing.T) { //nolint:paralleltest // see above
	for name, stop := range stopping {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // see above
			p := newPassing(t)
			b := newBench(t, domains("a.example.com"), newZone(t))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := p.serve(ctx, t, b.Server)
			p.ask(t, "denied.example.com", 0, 1)
			if err := p.answers(0, 1, answered); err != nil {
				t.Fatal(err)
			}
			withoutDescriptors(t, func() {
				stop(b.Server, cancel)
				ended(t, "the server", done)
			})
			if state := p.state(t); state != 0 {
				t.Errorf("nothing has arrived, and the socket is in the state %#x", state)
			}
		})
	}
}
