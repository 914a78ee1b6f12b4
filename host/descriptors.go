package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/preflight"
	"boxgate/proxy"
)

// descriptors says how the file descriptors that the process may have are shared out. Each part is bounded by itself, so
// that none takes from another: boxes cannot keep the admin API from answering, nor visitors of public URLs the boxes.
type descriptors struct {
	all       int
	reserve   int // for the admin API, DNS, the store, images, commands in boxes
	visitors  int // connections to each of the two listeners of public URLs, two each: the visitor's and the box's
	pipes     int // of tunnels in which bytes are on their way, two each
	conns     int // connections of all boxes at the proxy, two each: the box's and the server's
	upstreams int // connections to servers for HTTP requests, of all boxes
}

// mostDescriptors is as many as are shared out: more would be memory first.
const mostDescriptors = 1 << 20

// fewestDescriptors is what a gateway needs to be of use.
const fewestDescriptors = 1024

// shareDescriptors shares out n descriptors: an eighth is kept in reserve, a quarter is for public URLs, and of what is left
// four parts of five are for connections of boxes.
func shareDescriptors(n int) descriptors {
	n = min(n, mostDescriptors)
	d := descriptors{all: n, reserve: n / 8, visitors: n / 16, pipes: min(512, n/64)}
	boxes := n - d.reserve - 4*d.visitors - 2*d.pipes
	d.upstreams = boxes / 5
	d.conns = (boxes - d.upstreams) / 2
	return d
}

// apply bounds what the proxy takes for all boxes.
func (d descriptors) apply(c *proxy.Config) {
	c.MaxAllConns, c.MaxAllUpstreams, c.MaxPipes = d.conns, d.upstreams, d.pipes
}

// bound lets as many visitors in as there are descriptors for; the others wait in the backlog.
func (d descriptors) bound(ln net.Listener) net.Listener {
	return netutil.LimitListener(ln, d.visitors)
}

// forStrangers bounds the connections to one listener of which no key was seen. They are taken from the reserve, of which
// the three such listeners use three eighths at most.
func (d descriptors) forStrangers(ln net.Listener) net.Listener {
	return newStrangers(ln, max(8, min(d.reserve/8, 256)))
}

// descriptorLimit returns how many descriptors the process may come to have.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("the limit of open files: %w", err)
	}
	return int(min(limit.Max, mostDescriptors)), nil
}

// raiseDescriptors allows the process as many descriptors as it may have, and returns how they are shared out. Go has done
// so already where it could; what it starts gets the limit back that it had.
func raiseDescriptors() (descriptors, error) {
	n, err := descriptorLimit()
	if err != nil {
		return descriptors{}, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return descriptors{}, fmt.Errorf("the limit of open files: %w", err)
	}
	if limit.Cur < uint64(n) {
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return descriptors{}, fmt.Errorf("raising the limit of open files to %d: %w", n, err)
		}
	}
	return shareDescriptors(n), NeedDescriptors()
}

// NeedDescriptors requires as many descriptors as a gateway cannot do without.
func NeedDescriptors() error {
	n, err := descriptorLimit()
	if err == nil && n < fewestDescriptors {
		err = fmt.Errorf("the process may open %d files; allow at least %d (LimitNOFILE of the service, ulimit -n)", n, fewestDescriptors)
	}
	return err
}

// CheckShares warns where boxes at their limits would have to share what there is. That does no harm but to them: each gets
// its part, and the gateway keeps its own.
func CheckShares(cfg config.Config) error {
	n, err := descriptorLimit()
	if err != nil {
		return nil //nolint:nilerr // NeedDescriptors says it
	}
	return sharesOf(cfg, shareDescriptors(n), boxesOnDisk(cfg))
}

// sharesOf compares what so many boxes may open with what there is for all.
func sharesOf(cfg config.Config, d descriptors, boxes int) error {
	boxes = max(boxes, 1)
	var errs []error
	if want := boxes * cfg.Limits.Connections; want > d.conns {
		errs = append(errs, preflight.Warnf("limits.connections lets %d box(es) open %d connections, and there are descriptors for "+
			"%d of all together: a box may get fewer; lower it to %d, or raise the limit of open files (%d; LimitNOFILE of "+
			"the service)", boxes, want, d.conns, d.conns/boxes, d.all))
	}
	if want := boxes * cfg.Limits.Upstreams; want > d.upstreams {
		errs = append(errs, preflight.Warnf("limits.upstreams lets %d box(es) open %d connections to servers, and there are "+
			"descriptors for %d of all together: a box may get fewer; lower it to %d, or raise the limit of open files (%d)",
			boxes, want, d.upstreams, d.upstreams/boxes, d.all))
	}
	return errors.Join(errs...)
}

// boxesOnDisk is how many boxes the launcher has made here. Attached ones have no directory.
func boxesOnDisk(cfg config.Config) int {
	entries, err := os.ReadDir(filepath.Join(cfg.StateDir, "boxes"))
	if err != nil {
		return 0 // none yet
	}
	return len(entries)
}
