package host

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/ingress"
	"boxgate/proxy"
)

// health knows whether the gateway serves, and what it holds. Safe for concurrent use.
type health struct {
	serving   *serving
	proxy     *proxy.Proxy
	ingress   *ingress.Ingress
	recovered atomic.Bool // boxes are known
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
	return api.Capacity{
		Listeners: h.serving.states(ctx), Places: h.places(),
		Descriptors: api.PlaceState{Name: "descriptors", Used: open, Limit: most},
	}, err
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

// descriptors returns how many files the process has open, and how many it may have.
func descriptors() (open, most int, err error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, fmt.Errorf("the limit of open files: %w", err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, fmt.Errorf("counting open files: %w", err)
	}
	return len(entries) - 1, int(limit.Cur), nil // not counting the directory itself
}

// capacityMetrics exports the connections of each listener and the use of shared resources.
type capacityMetrics struct{ h *health }

var (
	listenerAccepts = prometheus.NewDesc("boxgate_listener_accepts",
		"1 if a connection that the gateway just made to its listener was accepted, else 0.", []string{"listener"}, nil)
	listenerOpen = prometheus.NewDesc("boxgate_listener_connections",
		"Open connections that a listener has accepted.", []string{"listener"}, nil)
	listenerMost = prometheus.NewDesc("boxgate_listener_connections_limit",
		"How many connections a listener holds at most; 0: the limits of boxes or of peers apply.", []string{"listener"}, nil)
	placesUsed = prometheus.NewDesc("boxgate_places_used",
		"Use of a resource that all boxes or all visitors share.", []string{"kind"}, nil)
	placesMost = prometheus.NewDesc("boxgate_places_limit", "Limit of that resource; 0: none.", []string{"kind"}, nil)
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

// byName merges the listeners of one name, such as those of both address families. The merged listener accepts if all of them do.
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
