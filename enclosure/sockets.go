package enclosure

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// HostSockets returns the paths of the Unix sockets bound in this process's network namespace, through which a command
// could make processes of the host act for it. Sockets with relative paths, and sockets of other network namespaces, cannot
// be found in this way.
func HostSockets() ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("finding the host's sockets: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		// Num: RefCount Protocol Flags Type St Inode Path; the path may contain spaces
		_, path, ok := strings.Cut(line, " /")
		if !ok {
			continue
		}
		path = "/" + strings.TrimSuffix(path, "\n")
		if !slices.Contains(out, path) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}
