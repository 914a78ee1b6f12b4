package dns

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/internal/memory"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Boxes finds the box that owns a source address, or nil. It is called for every packet and must not block. The kernel
// has checked that the address belongs to the interface on which the packet arrived.
type Boxes interface {
	BoxByAddr(netip.Addr) *policy.Box
}

// Recorder takes the audit event of each decision. It must not block.
type Recorder interface {
	Record(audit.Event)
}

// Dial opens a connection to an upstream; network is "udp" or "tcp". It follows the contract of net.Dialer.DialContext.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Config configures a [Server]. Boxes, Upstreams, SinkV4, SinkV6 and Audit are required.
type Config struct {
	Boxes Boxes
	// Upstreams are asked in order; one that fails is skipped for a while. Each is "address", "host:port" (UDP, and TCP
	// when an answer is truncated) or "tls://host:port" (RFC 7858), optionally with "#name" for the name that the
	// certificate must carry. Ports default to 53 and 853.
	Upstreams []string
	// Cluster is a domain whose names other servers resolve, for boxes whose policies open them alone. nil: there is none.
	Cluster        *Zone
	SinkV4, SinkV6 netip.Addr // answered for denied names and for names of public URLs
	// IsURL reports whether a name currently is a public URL of this gateway or may be a service, which is answered with the sink. nil: no
	// name is.
	IsURL func(name.Name) bool
	// IsInside reports whether a name is the gateway's endpoint for a box. It is answered with the sink under every policy. nil: no
	// name is.
	IsInside func(*policy.Box, name.Name) bool
	Audit    Recorder
	Log      *zap.Logger    // nil: no log
	Dial     Dial           // nil: net.Dialer
	Roots    *x509.CertPool // roots for tls:// upstreams; nil: the system's
	Limits   Limits
	Memory   *memory.Budget // shared by the boxes; nil: 64 MiB

	// MinGrant is the minimum life of a [Grant], whatever the TTL of the answer.
	MinGrant time.Duration
}

// Zone is a domain whose names are resolved by servers of its own.
type Zone struct {
	Domain    name.Name
	Upstreams []string // as Config.Upstreams; not empty
}

// has reports whether a name is in the domain. A nil Zone has no names.
func (z *Zone) has(n name.Name) bool { return z != nil && n.IsWithin(z.Domain) }

// hasText is has for a name in text, with its final dot. A text that is no host name is in no zone.
func (z *Zone) hasText(s string) bool {
	n, err := parseName(s)
	return err == nil && z.has(n)
}

// Limits bound the memory and work that boxes can cause. A zero field takes its default.
type Limits struct {
	QueriesPerSecond float64 // per box, sustained; default 500
	Burst            int     // per box, in one burst; default 1000
	InFlight         int     // queries of one box being answered; default 128
	TCPConns         int     // TCP connections of one box; default 16
	GrantsPerBox     int     // default 1024
	Grants           int     // of all boxes; default 262144
	CacheBytes       int     // wire size of the cached answers, roughly; default 32 MiB
	Lookups          int     // upstream lookups in flight, of all boxes; default 4096
	Sockets          int     // kept open to ask upstream over UDP, for all boxes; a lookup beyond them opens its own; default 4096
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	if l.QueriesPerSecond <= 0 {
		l.QueriesPerSecond = 500
	}
	set(&l.Burst, 1000)
	set(&l.InFlight, 128)
	set(&l.TCPConns, 16)
	set(&l.GrantsPerBox, 1024)
	set(&l.Grants, 1<<18)
	set(&l.CacheBytes, 32<<20)
	set(&l.Lookups, 4096)
	set(&l.Sockets, 4096)
	return l
}

func (c *Config) check() error {
	switch {
	case c.Boxes == nil || c.Audit == nil:
		return errors.New("dns: Config.Boxes and Config.Audit are required")
	case !c.SinkV4.Is4():
		return fmt.Errorf("dns: the IPv4 sink %v is not an IPv4 address", c.SinkV4)
	case !c.SinkV6.Is6() || c.SinkV6.Is4In6():
		return fmt.Errorf("dns: the IPv6 sink %v is not an IPv6 address", c.SinkV6)
	case len(c.Upstreams) == 0:
		return errors.New("dns: no upstream DNS server is configured")
	}
	return nil
}

const (
	maxResolvConf = 16 << 10 // bytes read of a box's resolv.conf
	maxSearch     = 32       // domains used of its search list
)

// SearchFromResolvConf returns the search list of a resolv.conf(5) that a box may have written. It skips entries that
// are not names.
func SearchFromResolvConf(r io.Reader) []name.Name {
	conf, err := mdns.ClientConfigFromReader(io.LimitReader(r, maxResolvConf))
	if err != nil {
		return nil
	}
	var names []name.Name
	for _, s := range conf.Search {
		if n, err := parseName(s); err == nil && len(names) < maxSearch {
			names = append(names, n)
		}
	}
	return names
}

// UpstreamsFromResolvConf returns the name servers of a resolv.conf(5), in the form of Config.Upstreams. It fails if
// the file lists no server.
func UpstreamsFromResolvConf(r io.Reader) ([]string, error) {
	conf, err := mdns.ClientConfigFromReader(r)
	if err != nil {
		return nil, fmt.Errorf("dns: read resolv.conf: %w", err)
	}
	if len(conf.Servers) == 0 {
		return nil, errors.New("dns: resolv.conf names no server; list the upstream DNS servers in the configuration")
	}
	upstreams := make([]string, len(conf.Servers))
	for i, s := range conf.Servers {
		upstreams[i] = net.JoinHostPort(s, conf.Port)
	}
	return upstreams, nil
}

var upstreamUp = prometheus.NewDesc("boxgate_dns_upstream_up",
	"Whether an upstream DNS server is in use: 0 while it is skipped because it does not answer.", []string{"upstream"}, nil)

var queriesWaiting = prometheus.NewDesc("boxgate_dns_queries_waiting", "DNS queries of boxes that are being answered.", nil, nil)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	ch <- upstreamUp
	ch <- queriesWaiting
	s.up.counts.questions.Describe(ch)
	s.up.counts.latency.Describe(ch)
}

// Collect implements [prometheus.Collector]: register the Server itself.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, u := range s.up.all() {
		up := 1.0
		if u.isHeldDown() {
			up = 0
		}
		ch <- prometheus.MustNewConstMetric(upstreamUp, prometheus.GaugeValue, up, u.name)
	}
	ch <- prometheus.MustNewConstMetric(queriesWaiting, prometheus.GaugeValue, float64(s.usages.inFlightTotal()))
	s.up.counts.questions.Collect(ch)
	s.up.counts.latency.Collect(ch)
}

// counts are the metrics of the upstream servers. Their labels are names from the configuration and a closed set of
// results, so their number is bounded.
type counts struct {
	questions *prometheus.CounterVec
	latency   *prometheus.HistogramVec
}

// The results of a question to an upstream server.
const (
	resultAnswered = "answered" // with records, or with a negative answer
	resultRefused  = "refused"  // SERVFAIL, REFUSED and the like
	resultSilent   = "silent"   // no answer, or an unreadable one
)

func newCounts(upstreams []string) *counts {
	c := &counts{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_dns_upstream_questions_total", Help: "Questions to an upstream DNS server, by result.",
		}, []string{"upstream", "result"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "boxgate_dns_upstream_seconds", Help: "How long an upstream DNS server took to answer, whatever the answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 1.5},
		}, []string{"upstream"}),
	}
	for _, name := range upstreams { // so that rate() sees the first one
		for _, result := range []string{resultAnswered, resultRefused, resultSilent} {
			c.questions.WithLabelValues(name, result)
		}
		c.latency.WithLabelValues(name)
	}
	return c
}

// observe counts a question to an upstream, with its result and duration. A nil receiver does not count.
func (c *counts) observe(upstream, result string, took time.Duration) {
	if c == nil {
		return
	}
	c.questions.WithLabelValues(upstream, result).Inc()
	if result != resultSilent {
		c.latency.WithLabelValues(upstream).Observe(took.Seconds())
	}
}
