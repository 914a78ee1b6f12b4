package handover

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A socket pair of another process than the one that has started this is not taken up: that one would be killed for it.
func TestAPredecessorIsTheParent(t *testing.T) {
	t.Parallel()
	ours, theirs, err := Pair() // of this process itself
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
