package namespace

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// wholeTries is how often a list is read again, more often than other programs that create and delete interfaces make
// necessary.
const wholeTries = 20

// Whole reads a list of kernel objects as of one moment. If the list changed during the dump, as happens where containers
// start and end, the kernel reports that, and Whole reads it again, up to wholeTries times.
func Whole[T any](list func() (T, error)) (found T, err error) {
	for range wholeTries {
		if found, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return found, err
}
