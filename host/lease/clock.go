package lease

import (
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
)

// System reads the host's clocks.
func System() Now {
	now := Now{Wall: fault.Now()}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err == nil {
		now.Boot, now.Since = bootID(), time.Duration(ts.Nano())
	}
	return now
}

// bootID returns the ID of the host's current boot, "" if unknown.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})
