package node

import (
	"context"

	"github.com/caddyserver/certmagic"
	"github.com/prometheus/client_golang/prometheus"

	"boxgate/fleet"
	"boxgate/fleet/certstore"
	"boxgate/policy/name"
)

// Certificates is the storage of the fleet's certificates, with its metrics. Safe for concurrent use.
type Certificates struct{ *certstore.Store }

// Certificates returns the storage. The cache is private to this host; it answers while etcd does not.
func (n *Node) Certificates(cache certmagic.Storage) (Certificates, error) {
	s, err := certstore.New(certstore.Config{
		Client: n.client, Keys: fleet.KeysOf(n.Fleet), Founding: n.Identity.Founding, Guard: n.session.Guard, Cache: cache, Log: n.Log.Named("certificates"),
		Authority: func(ctx context.Context) (name.Secret, error) { return n.roster.AuthorityKey(ctx, n.Identity) },
	})
	return Certificates{s}, err
}

var (
	cachedDesc  = prometheus.NewDesc("boxgate_fleet_certificate_cache_reads_total", "Reads of certificates that this host's cache answered, because etcd did not.", nil, nil)
	refusedDesc = prometheus.NewDesc("boxgate_fleet_certificate_writes_refused_total", "Locks and changes of certificates that failed, because etcd or the host's lease was away.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (c Certificates) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c Certificates) Collect(to chan<- prometheus.Metric) {
	cached, refused := c.Counts()
	to <- prometheus.MustNewConstMetric(cachedDesc, prometheus.CounterValue, float64(cached))
	to <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(refused))
}
