package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/audit/export"
	"boxgate/host/netns"
	"boxgate/ingress"
	"boxgate/internal/acceptor"
	"boxgate/internal/socket"
	"boxgate/proxy"
	"boxgate/sshd"
)

// health reports whether the gateway serves, and its use of shared resources. Safe for concurrent use.
type health struct {
	serving   *serving
	proxy     *proxy.Proxy
	ingress   *ingress.Ingress
	unremoved func() []string // interfaces of closed boxes that could not be removed
	pushed    *export.Metrics // nil: metrics are not exported
	ssh       *sshd.Server    // nil: disabled
	recovered atomic.Bool     // the boxes of an earlier run are known
}

// Ready implements the Health of [boxgate/api/gateway]: boxes were recovered, and every listener accepts connections.
func (h *health) Ready(ctx context.Context) error {
	if !h.recovered.Load() {
		return api.Errorf(api.ErrUnavailable, "the gateway is starting")
	}
	if err := h.serving.check(ctx); err != nil {
		return api.Errorf(api.ErrUnavailable, "%v", err)
	}
	return nil
}

// Capacity implements the Health of [boxgate/api/gateway].
func (h *health) Capacity(ctx context.Context) (api.Capacity, error) {
	open, most, err := descriptors()
	c := api.Capacity{
		Listeners: h.serving.states(ctx), Places: h.places(),
		Descriptors: api.PlaceState{Name: "descriptors", Used: open, Limit: most},
		Unremoved:   h.unremoved(), SSHHostKey: h.ssh.Fingerprint(),
	}
	if h.pushed != nil {
		at, err := h.pushed.State()
		c.MetricsExport = &api.ExportState{Succeeded: at}
		if err != nil {
			c.MetricsExport.Error = err.Error()
		}
	}
	return c, err
}

// places returns the resources that all boxes or all visitors share, sorted by name.
func (h *health) places() (list []api.PlaceState) {
	for name, use := range h.proxy.Uses() {
		list = append(list, api.PlaceState{Name: name, Used: use.Taken, Limit: use.Most})
	}
	for name, use := range h.ingress.Uses() {
		list = append(list, api.PlaceState{Name: name, Used: use.Taken, Limit: use.Most})
	}
	slices.SortFunc(list, func(a, b api.PlaceState) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// descriptors returns the number of the process's open file descriptors, and their limit.
func descriptors() (open, most int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, fmt.Errorf("the limit of open files: %w", err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, fmt.Errorf("counting open files: %w", err)
	}
	return len(entries) - 1, int(limit.Cur), nil // minus the descriptor of the directory itself
}

// capacityMetrics exports the connections of each listener and the use of shared resources.
type capacityMetrics struct{ h *health }

var (
	listenerAccepts = prometheus.NewDesc("boxgate_listener_accepts",
		"1 if a connection that the gateway just made to its listener was accepted, else 0.", []string{"listener"}, nil)
	listenerOpen = prometheus.NewDesc("boxgate_listener_connections",
		"Open connections that a listener has accepted.", []string{"listener"}, nil)
	listenerMost = prometheus.NewDesc("boxgate_listener_connections_limit",
		"Limit of the open connections of a listener; 0: the limits of boxes or of peers apply.", []string{"listener"}, nil)
	placesUsed = prometheus.NewDesc("boxgate_places_used",
		"Use of a resource that all boxes or all visitors share.", []string{"kind"}, nil)
	placesMost = prometheus.NewDesc("boxgate_places_limit", "Limit of a resource that all boxes or all visitors share; 0: unlimited.", []string{"kind"}, nil)
)

// Describe implements [prometheus.Collector].
func (m capacityMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{listenerAccepts, listenerOpen, listenerMost, placesUsed, placesMost} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m capacityMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), label)
	}
	for name, l := range byName(m.h.serving.states(context.Background())) {
		accepts := 0
		if l.Accepts {
			accepts = 1
		}
		gauge(listenerAccepts, accepts, name)
		gauge(listenerOpen, l.Connections, name)
		gauge(listenerMost, l.Limit, name)
	}
	for _, p := range m.h.places() {
		gauge(placesUsed, p.Used, p.Name)
		gauge(placesMost, p.Limit, p.Name)
	}
}

// byName merges the listeners of one name, such as the IPv4 and the IPv6 one. The merged listener accepts if all of them do.
func byName(states []api.ListenerState) map[string]api.ListenerState {
	all := map[string]api.ListenerState{}
	for _, s := range states {
		if sum, known := all[s.Name]; known {
			s.Accepts = s.Accepts && sum.Accepts
			s.Connections += sum.Connections
			s.Limit += sum.Limit
		}
		all[s.Name] = s
	}
	return all
}

const (
	// acceptTime is how long a listener may take to accept a connection before it counts as one that does not.
	acceptTime = 3 * time.Second
	// acceptValid is how long a result is cached: readyz needs no key, and each check makes a connection to every listener.
	acceptValid = time.Second
)

// serving checks that the listeners of the gateway accept connections. Safe for concurrent use.
type serving struct {
	log     *zap.Logger
	timeout time.Duration // acceptTime

	mu        sync.Mutex
	listeners []*served
	ended     bool // this process has stopped accepting, or is about to

	checking sync.Mutex // held during a check
	checked  time.Time  // the end of the last check; guarded by checking
}

// served is one listener.
type served struct {
	name        string
	ln          *acceptor.Listener
	netNS       *netns.Net // its network namespace; nil: the gateway's own
	connections func() (connections, most int)

	lastErr error // result of the last check; guarded by checking
}

// add registers a listener that is about to be served. held returns how many of its connections are open, and their limit (0: unlimited).
func (s *serving) add(name string, ln *acceptor.Listener, in *netns.Net, held func() (connections, most int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, &served{name: name, ln: ln, netNS: in, connections: held})
}

// tryable wraps a listener so that it can be tried and drained.
func tryable(ln net.Listener) *acceptor.Listener { return acceptor.New(socket.NewQueue(ln)) }

// stopChecks stops the checks. Call it before this process stops accepting: afterwards connections to the listeners reach
// another process, or are refused.
func (s *serving) stopChecks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// errNotServing is the result of a check after [serving.stopChecks].
var errNotServing = errors.New("the gateway is stopping")

// all returns the listeners, and whether this process still serves them.
func (s *serving) all() (list []*served, serves bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listeners[:len(s.listeners):len(s.listeners)], !s.ended
}

// checkLocked tries all listeners, unless the last result is still valid, and returns an error for each that does not accept. The
// caller must hold checking.
func (s *serving) checkLocked(ctx context.Context) error {
	all, serves := s.all()
	if !serves {
		return errNotServing
	}
	if time.Since(s.checked) >= acceptValid {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout) // the result is cached for other callers
		defer cancel()
		var trying sync.WaitGroup
		for _, one := range all {
			trying.Go(func() { s.try(ctx, one) })
		}
		trying.Wait()
		s.checked = time.Now()
	}
	var failed []error
	for _, one := range all {
		if one.lastErr != nil {
			failed = append(failed, fmt.Errorf("%s at %v: %w", one.name, one.ln.Addr(), one.lastErr))
		}
	}
	return errors.Join(failed...)
}

// try tries one listener and logs a change of its state.
func (s *serving) try(ctx context.Context, one *served) {
	before := one.lastErr
	one.lastErr = one.netNS.Do(func() error { return one.ln.Probe(ctx) })
	at := []zap.Field{zap.String("listener", one.name), zap.Stringer("address", one.ln.Addr()), zap.Error(one.lastErr)}
	switch _, serves := s.all(); {
	case serves && before == nil && one.lastErr != nil:
		s.log.Error("a listener does not accept connections", at...)
	case before != nil && one.lastErr == nil:
		s.log.Info("the listener accepts connections again", at...)
	}
}

// check returns an error that names every listener that does not accept connections.
func (s *serving) check(ctx context.Context) error {
	s.checking.Lock()
	defer s.checking.Unlock()
	return s.checkLocked(ctx)
}

// states returns the state of every listener.
func (s *serving) states(ctx context.Context) (states []api.ListenerState) {
	s.checking.Lock()
	defer s.checking.Unlock()
	_ = s.checkLocked(ctx) // each result is in lastErr
	all, serves := s.all()
	for _, one := range all {
		connections, most := one.connections()
		states = append(states, api.ListenerState{
			Name: one.name, Address: one.ln.Addr().String(), Accepts: serves && one.lastErr == nil, Connections: connections, Limit: most,
		})
	}
	return states
}
