package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// kernelSupply is a kernel limit for the whole host, or for each user and so for each box, whose default is often too
// low.
type kernelSupply struct {
	file        string // below /proc/sys
	minimum     uint64
	recommended uint64 // recommended value
	consequence string // consequence of a lower value
}

// kernelSupplies are the resources that `gateway check` checks. Boxes cannot exhaust per-user limits; host-wide limits
// must suffice for all boxes at their limits.
var kernelSupplies = []kernelSupply{
	{"kernel/pid_max", 1 << 17, 1 << 22, "a box may have 2,048 processes or more, depending on its size; when they run out, no command can be started"},
	{"kernel/threads-max", 1 << 17, 1 << 22, "a box may have 2,048 threads or more, depending on its size; when they run out, no command can be started"},
	{"kernel/pty/max", 4096, 1 << 16, "a box may have 64 terminals"},
	{"fs/file-max", 1 << 24, 1<<63 - 1, "a box may open as many files as fit into its memory; when they run out, only root can open any"},
	{"fs/aio-max-nr", 1 << 16, 1 << 20, "attached boxes share it with the host; launched ones get none"},
	{"fs/inotify/max_user_instances", 128, 1024, "the limit applies per box; above it, programs that watch files fail with EMFILE"},
	{"fs/inotify/max_user_watches", 1 << 16, 1 << 19, "the limit applies per box; above it, programs that watch files fail with ENOSPC"},
}

// CheckSupplies warns about limits that are too low. Limits that the kernel does not have are skipped.
func CheckSupplies(sysctls string) error {
	var errs []error
	for _, s := range kernelSupplies {
		data, err := os.ReadFile(filepath.Join(sysctls, s.file))
		if err != nil {
			continue
		}
		have, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		if err == nil && have < s.minimum {
			key := strings.ReplaceAll(s.file, "/", ".")
			errs = append(errs, Warnf("%s is %d: %s; set it in /etc/sysctl.d/boxgate.conf: %s = %d", key, have, s.consequence, key, s.recommended))
		}
	}
	return errors.Join(errs...)
}
