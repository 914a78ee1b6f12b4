package node

import (
	"bytes"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/watch"
)

// hosts has the hosts of the fleet, as of the last change that was followed.
type hosts struct {
	mu    sync.RWMutex
	known map[string]fleet.Host
}

func (d *hosts) get(id string) (fleet.Host, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	h, ok := d.known[id]
	return h, ok
}

// fingerprint returns the key of a member, as [pki.Peers] needs it.
func (d *hosts) fingerprint(id string) ([]byte, bool) {
	h, ok := d.get(id)
	return h.Key, ok && len(h.Key) > 0
}

func (d *hosts) len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.known)
}

// set replaces a host; remove: the host left, or its record cannot be read.
func (d *hosts) set(id string, h fleet.Host, remove bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if remove {
		delete(d.known, id)
		return
	}
	d.known[id] = h
}

// apply follows the directory. A host whose record is not readable, or of a later protocol, is none: it is not trusted. If the record of
// this host is gone, or that of another membership, the session asks etcd again, and is fenced until then.
func (n *Node) apply(c watch.Change) {
	prefix := fleet.KeysOf(n.Fleet).Hosts()
	for _, e := range c.Set {
		id, ok := strings.CutPrefix(e.Key, prefix)
		if !ok {
			continue // a kind of a later version
		}
		h, err := fleet.Decode[fleet.Host](e.Value)
		unusable := err != nil || h.ID != id || h.Protocol > fleet.Protocol
		if unusable {
			n.Log.Warn("a record of the directory of hosts is not usable", zap.String("key", e.Key), zap.Int("protocol", h.Protocol), zap.Error(err))
		}
		n.hosts.set(id, h, unusable)
	}
	for _, key := range c.Deleted {
		if id, ok := strings.CutPrefix(key, prefix); ok {
			n.hosts.set(id, fleet.Host{}, true)
		}
	}
	if h, ok := n.hosts.get(n.Identity.Host); !ok || !bytes.Equal(h.Key, n.fingerprint) {
		n.session.Recheck()
	}
	n.shared.ring.Follow(c)
	n.shared.mirror.Follow(c)
}

// The metrics of a fleet.
var (
	fencedDesc      = prometheus.NewDesc("boxgate_fleet_fenced", "1: the lease of this host in the fleet may have ended; no new boxes. 0: not.", nil, nil)
	leaseDesc       = prometheus.NewDesc("boxgate_fleet_lease_seconds", "How long this host is not fenced without another keep-alive.", nil, nil)
	hostsDesc       = prometheus.NewDesc("boxgate_fleet_hosts", "Hosts in the directory of the fleet, as this host knows it.", nil, nil)
	revisionDesc    = prometheus.NewDesc("boxgate_fleet_revision", "Revision of etcd up to which this host has followed the fleet; 0: not yet.", nil, nil)
	currentDesc     = prometheus.NewDesc("boxgate_fleet_current_timestamp_seconds", "When this host last knew the latest state of the fleet; 0: not since the start.", nil, nil)
	listingsDesc    = prometheus.NewDesc("boxgate_fleet_listings_total", "Complete listings of the fleet: one at the start, and one after each gap in the changes.", nil, nil)
	objectsDesc     = prometheus.NewDesc("boxgate_fleet_shared_objects", "Objects that the fleet shares and this host knows, by kind.", []string{"kind"}, nil)
	pendingDesc     = prometheus.NewDesc("boxgate_fleet_shared_pending", "Kinds of shared objects that this host knows, but could not put in force yet.", nil, nil)
	certificateDesc = prometheus.NewDesc("boxgate_fleet_certificate_expiry_timestamp_seconds", "When the certificate of this host in the fleet expires; 0: it has none.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (n *Node) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(n, to) }

// Collect implements [prometheus.Collector].
func (n *Node) Collect(to chan<- prometheus.Metric) {
	state, fenced := n.follower.State(), 0.0
	if n.Fenced() {
		fenced = 1
	}
	gauge := func(desc *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
	gauge(fencedDesc, fenced)
	gauge(leaseDesc, n.session.Left().Seconds())
	gauge(hostsDesc, float64(n.hosts.len()))
	gauge(revisionDesc, float64(state.Revision))
	gauge(currentDesc, seconds(state.At.UnixNano(), state.At.IsZero()))
	gauge(certificateDesc, seconds(n.rotation.NotAfter().UnixNano(), n.rotation.NotAfter().IsZero()))
	to <- prometheus.MustNewConstMetric(listingsDesc, prometheus.CounterValue, float64(state.Listings))
	objects, pending := n.shared.mirror.Counts()
	gauge(pendingDesc, float64(pending))
	for kind, count := range objects {
		to <- prometheus.MustNewConstMetric(objectsDesc, prometheus.GaugeValue, float64(count), string(kind))
	}
}

// seconds converts a time in nanoseconds; 0 if there is none.
func seconds(nanoseconds int64, none bool) float64 {
	if none {
		return 0
	}
	return float64(nanoseconds) / 1e9
}
