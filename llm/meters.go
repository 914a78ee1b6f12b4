package llm

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy/name"
)

// Meters are the APIs of servers that the operator names (meters in the configuration), by host, and by host with the beginning of a path:
// "api.groq.com", "models.example.com:8443", "api.deepseek.com/anthropic". The port 443 is left out. The zero value has none.
type Meters map[string]Vendor

// PathMeter is the API of requests whose path has a prefix, at a host with several APIs.
type PathMeter struct {
	Prefix string
	Vendor Vendor
}

// maxMeters bounds [Meters].
const maxMeters = 256

// validPath matches the beginnings of paths in [Meters].
var validPath = regexp.MustCompile(`^(/[A-Za-z0-9._~:@-]+){1,16}$`)

// Check finds hosts, paths and vendors that are not valid, and returns the first.
func (m Meters) Check() error {
	if len(m) > maxMeters {
		return fmt.Errorf("has more than %d entries", maxMeters)
	}
	for _, at := range slices.Sorted(maps.Keys(m)) {
		host, path, below := strings.Cut(at, "/")
		_, whole := m[host]
		switch {
		case !isMeterHost(host):
			return fmt.Errorf("%q is not of the form HOST, HOST:PORT or HOST/PATH, in lower case; the port 443 is left out", at)
		case below && !validPath.MatchString("/"+path):
			return fmt.Errorf("%q: the path must be plain, such as /v1/messages", at)
		case !whole:
			return fmt.Errorf("%q needs an entry for %q as well, for the other paths", at, host)
		case !slices.Contains(Vendors(), m[at]):
			return fmt.Errorf("%q: %q is not one of %v", at, m[at], Vendors())
		}
	}
	return nil
}

// isMeterHost reports whether a host is written as in the servers of agents' models.
func isMeterHost(at string) bool {
	host, port, named := strings.Cut(at, ":")
	n, err := name.Parse(host)
	if err != nil || n.String() != host {
		return false
	}
	number, err := strconv.ParseUint(port, 10, 16)
	return !named || err == nil && number > 0 && number != uint64(name.HTTPSPort) && strconv.FormatUint(number, 10) == port
}

// At returns the API of a host, and those below some of its paths, of which the first that matches counts. ok is false for a host without
// an entry.
func (m Meters) At(host string) (v Vendor, below []PathMeter, ok bool) {
	if v, ok = m[host]; !ok {
		return "", nil, false
	}
	for at, vendor := range m {
		if own, path, isPath := strings.Cut(at, "/"); isPath && own == host {
			below = append(below, PathMeter{"/" + path, vendor})
		}
	}
	slices.SortFunc(below, func(a, b PathMeter) int { // of two that match, the longer one counts
		return cmp.Or(cmp.Compare(len(b.Prefix), len(a.Prefix)), cmp.Compare(a.Prefix, b.Prefix))
	})
	return v, below, true
}
