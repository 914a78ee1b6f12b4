// Package share divides the process's file descriptors and memory among the boxes, the visitors of public URLs and the
// gateway itself.
package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host/authlimit"
	"boxgate/preflight"
	"boxgate/proxy"
)

// Descriptors divides the file descriptors of the process. Each part has its own limit, so that boxes cannot starve the
// admin API, nor visitors of public URLs the boxes.
type Descriptors struct {
	all       int
	reserve   int // for the admin API, DNS, the store, images and commands in boxes
	visitors  int // visitors per listener of public URLs, of which there are two; two descriptors each, one to the visitor and one to the box
	pipes     int // tunnels with data in transit; two descriptors each
	conns     int // connections of all boxes at the proxy; two descriptors each, one to the box and one to the server
	upstreams int // connections of all boxes to servers for HTTP requests
}

// mostDescriptors is the maximum number of descriptors used; beyond it memory would run out first.
const mostDescriptors = 1 << 20

// fewestDescriptors is the minimum that a gateway needs.
const fewestDescriptors = 1024

// shareDescriptors divides n descriptors: an eighth for the reserve, a quarter for public URLs, and four fifths of the
// rest for connections of boxes.
func shareDescriptors(n int) Descriptors {
	n = min(n, mostDescriptors)
	d := Descriptors{all: n, reserve: n / 8, visitors: n / 16, pipes: min(512, n/64)}
	boxes := n - d.reserve - 4*d.visitors - 2*d.pipes
	d.upstreams = boxes / 5
	d.conns = (boxes - d.upstreams) / 2
	return d
}

// Apply sets the proxy's limits for all boxes. Parallel connection attempts (Happy Eyeballs), which last seconds, use the
// reserve.
func (d Descriptors) Apply(c *proxy.Config) {
	c.MaxAllConns, c.MaxAllUpstreams, c.MaxPipes = d.conns, d.upstreams, d.pipes
	c.MaxExtraAttempts = d.reserve / 8
}

// URLLimits returns the maximum number of connections of each of the two listeners of public URLs, and of requests forwarded
// to boxes at a time. The latter leaves room for a third as many pooled connections to boxes.
func (d Descriptors) URLLimits() (connections, requests int) {
	return d.visitors, d.visitors * 3 / 2
}

// Remote returns the maximum number of connections of remote boxes. Each takes two descriptors of the reserve, besides the descriptors of
// a connection of a box: one to the client, and one to the proxy.
func (d Descriptors) Remote() int { return max(8, d.reserve/8) }

// Keyless limits the connections to a listener that have not presented an API key or a token. They use the reserve; the six such
// listeners use at most six eighths of it.
func (d Descriptors) Keyless(ln net.Listener) *authlimit.Listener {
	return authlimit.New(ln, max(8, min(d.reserve/8, 256)))
}

// Hosts returns the maximum number of connections of the other hosts of a fleet. They use the reserve.
func (d Descriptors) Hosts() int { return max(16, d.reserve/8) }

// DNSSockets returns the maximum number of DNS sockets to upstream resolvers. They use the reserve.
func (d Descriptors) DNSSockets() int { return d.reserve / 8 }

// descriptorLimit returns the highest descriptor limit that the process may set.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("the limit of open files: %w", err)
	}
	return int(min(limit.Max, mostDescriptors)), nil
}

// RaiseDescriptors raises the limit of open files to its maximum, and divides the descriptors. The Go runtime raises the
// limit too where it can, and restores the original limit for child processes.
func RaiseDescriptors() (Descriptors, error) {
	n, err := descriptorLimit()
	if err != nil {
		return Descriptors{}, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return Descriptors{}, fmt.Errorf("the limit of open files: %w", err)
	}
	if limit.Cur < uint64(n) {
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return Descriptors{}, fmt.Errorf("raising the limit of open files to %d: %w", n, err)
		}
	}
	return shareDescriptors(n), NeedDescriptors()
}

// NeedDescriptors returns an error if the process may open fewer descriptors than a gateway needs.
func NeedDescriptors() error {
	n, err := descriptorLimit()
	if err == nil && n < fewestDescriptors {
		err = fmt.Errorf("the process may open %d files; allow at least %d (LimitNOFILE of the service, ulimit -n)", n, fewestDescriptors)
	}
	return err
}

// CheckShares warns if boxes at their limits would need more descriptors than there are. They would then share the
// available ones; the gateway's own are not affected.
func CheckShares(cfg config.Config) error {
	n, err := descriptorLimit()
	if err != nil {
		return nil // NeedDescriptors reports it
	}
	return sharesOf(cfg, shareDescriptors(n), boxesOnDisk(cfg))
}

// sharesOf compares the descriptors that boxes may use with the descriptors for all boxes.
func sharesOf(cfg config.Config, d Descriptors, boxes int) error {
	boxes = max(boxes, 1)
	var errs []error
	if want := boxes * cfg.Limits.Connections; want > d.conns {
		errs = append(errs, preflight.Warnf("limits.connections lets %s open %d connections, and there are descriptors for "+
			"%d of all together: a box may get fewer; lower it to %d, or raise the limit of open files (%d; LimitNOFILE of "+
			"the service)", counted(boxes), want, d.conns, d.conns/boxes, d.all))
	}
	if want := boxes * cfg.Limits.Upstreams; want > d.upstreams {
		errs = append(errs, preflight.Warnf("limits.upstreams lets %s open %d connections to servers, and there are "+
			"descriptors for %d of all together: a box may get fewer; lower it to %d, or raise the limit of open files (%d)",
			counted(boxes), want, d.upstreams, d.upstreams/boxes, d.all))
	}
	return errors.Join(errs...)
}

// counted returns a number of boxes as text.
func counted(boxes int) string {
	if boxes == 1 {
		return "1 box"
	}
	return strconv.Itoa(boxes) + " boxes"
}

// boxesOnDisk returns the number of launched boxes. Attached boxes have no directory.
func boxesOnDisk(cfg config.Config) int {
	entries, err := os.ReadDir(filepath.Join(cfg.StateDir, "boxes"))
	if err != nil {
		return 0 // no boxes yet
	}
	return len(entries)
}
