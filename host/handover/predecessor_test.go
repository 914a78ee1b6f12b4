package handover

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket pair that was not made by the parent process is rejected; otherwise its maker could be killed as an
// unresponsive predecessor.
func TestAPredecessorIsTheParent(t *testing.T) {
	t.Parallel()
	ours, theirs, err := Pair() // made by this process itself
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, theirs.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Greeted(fd); err == nil || !strings.Contains(err.Error(), "has not started this process") {
		t.Error(err)
	}
}
