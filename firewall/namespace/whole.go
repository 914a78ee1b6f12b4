package namespace

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// wholeTries is how often a list is read anew, more than other programs that make and delete interfaces can make necessary.
const wholeTries = 20

// Whole returns a list of the kernel's as it was at one moment. The kernel says so if others have changed it while it was read, as happens
// where containers start and end; then it is read again.
func Whole[T any](list func() (T, error)) (found T, err error) {
	for range wholeTries {
		if found, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return found, err
}
