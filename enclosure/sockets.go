package enclosure

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// HostSockets returns the paths of the Unix sockets that processes in the network namespace of this one have bound: those by which
// a command could ask them to do what it may not. Sockets with relative paths, and those of other network namespaces, cannot be found
// so.
func HostSockets() ([]string, error) {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("finding the host's sockets: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		// Num: RefCount Protocol Flags Type St Inode Path, of which the last may have spaces
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
