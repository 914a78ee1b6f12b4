// Package share divides what the process may use among the boxes, the visitors of public URLs and the gateway itself: file
// descriptors and memory.
package share

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host/keyless"
	"boxgate/preflight"
	"boxgate/proxy"
)

// Descriptors says how the file descriptors of the process are divided. Each part has a bound of its own and takes from no
// other: boxes cannot keep the admin API from answering, nor visitors of public URLs the boxes.
type Descriptors struct {
	all       int
	reserve   int // for the admin API, DNS, the store, images, commands in boxes
	visitors  int // connections to each of the two listeners of public URLs, two each: the visitor's and the box's
	pipes     int // of tunnels in which bytes are on their way, two each
	conns     int // connections of all boxes at the proxy, two each: the box's and the server's
	upstreams int // connections to servers for HTTP requests, of all boxes
}

// mostDescriptors is as many as are divided: before more could be used, memory would run out.
const mostDescriptors = 1 << 20

// fewestDescriptors is the least that a gateway can work with.
const fewestDescriptors = 1024

// shareDescriptors divides n descriptors: an eighth is kept in reserve, a quarter is for public URLs, and four fifths of the
// rest are for connections of boxes.
func shareDescriptors(n int) Descriptors {
	n = min(n, mostDescriptors)
	d := Descriptors{all: n, reserve: n / 8, visitors: n / 16, pipes: min(512, n/64)}
	boxes := n - d.reserve - 4*d.visitors - 2*d.pipes
	d.upstreams = boxes / 5
	d.conns = (boxes - d.upstreams) / 2
	return d
}

// Apply bounds what the proxy uses for all boxes. Attempts to connect beside another one of the same connection, which last seconds, come
// out of the reserve.
func (d Descriptors) Apply(c *proxy.Config) {
	c.MaxAllConns, c.MaxAllUpstreams, c.MaxPipes = d.conns, d.upstreams, d.pipes
	c.MaxExtraAttempts = d.reserve / 8
}

// Visits returns how many connections each of the two listeners of public URLs may hold, and how many requests may be
// forwarded to boxes at a time if a third as many connections to boxes are kept for later.
func (d Descriptors) Visits() (connections, requests int) {
	return d.visitors, d.visitors * 3 / 2
}

// Keyless bounds the connections to a listener that have shown no key. They come out of the reserve, of which the three such
// listeners use three eighths at most.
func (d Descriptors) Keyless(ln net.Listener) *keyless.Listener {
	return keyless.New(ln, max(8, min(d.reserve/8, 256)))
}

// Questions returns how many sockets DNS may keep open to ask upstream from. They come out of the reserve.
func (d Descriptors) Questions() int { return d.reserve / 8 }

// descriptorLimit returns how many descriptors the process may raise its limit to.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("the limit of open files: %w", err)
	}
	return int(min(limit.Max, mostDescriptors)), nil
}

// RaiseDescriptors raises the limit of open files as far as it may be raised, and returns how the descriptors are divided. Go
// does the same where it can, and gives the programs that it starts the original limit.
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

// NeedDescriptors requires the least number of descriptors that a gateway can work with.
func NeedDescriptors() error {
	n, err := descriptorLimit()
	if err == nil && n < fewestDescriptors {
		err = fmt.Errorf("the process may open %d files; allow at least %d (LimitNOFILE of the service, ulimit -n)", n, fewestDescriptors)
	}
	return err
}

// CheckShares warns where boxes at their limits would need more descriptors than there are. They then share what there is, and
// the gateway keeps its own.
func CheckShares(cfg config.Config) error {
	n, err := descriptorLimit()
	if err != nil {
		return nil //nolint:nilerr // NeedDescriptors says it
	}
	return sharesOf(cfg, shareDescriptors(n), boxesOnDisk(cfg))
}

// sharesOf compares what that many boxes may open with what there is for all of them.
func sharesOf(cfg config.Config, d Descriptors, boxes int) error {
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

// boxesOnDisk is the number of boxes that were launched here. Attached ones have no directory.
func boxesOnDisk(cfg config.Config) int {
	entries, err := os.ReadDir(filepath.Join(cfg.StateDir, "boxes"))
	if err != nil {
		return 0 // none yet
	}
	return len(entries)
}
