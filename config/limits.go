package config

import (
	"maps"
	"slices"
	"time"

	"boxgate/llm"
	"boxgate/llm/budget"
	"boxgate/policy"
	"boxgate/quota"
)

// Limits bounds the resources of the gateway that one box can use, so that enough is left for the others.
type Limits struct {
	Connections    int           `yaml:"connections"`
	NewConnections int           `yaml:"new_connections_per_second"`
	Interceptions  int           `yaml:"interceptions"`
	Streams        int           `yaml:"streams"`
	Requests       int           `yaml:"requests_per_second"`
	Upstreams      int           `yaml:"upstreams"`
	KernelFlows    int           `yaml:"kernel_flows"`
	DNSQueries     int           `yaml:"dns_queries_per_second"`
	Send           Size          `yaml:"send_bytes_per_second"`    // 0: no limit
	Receive        Size          `yaml:"receive_bytes_per_second"` // 0: no limit
	Quota          Size          `yaml:"quota"`                    // bytes in a period; 0: no limit
	QuotaPeriod    time.Duration `yaml:"quota_period"`
	PeekTimeout    time.Duration `yaml:"peek_timeout"`
	Memory         Size          `yaml:"memory"`
	ProcessMemory  Size          `yaml:"process_memory"` // of the gateway process; 0: depends on the host
	Model          ModelLimit    `yaml:"model"`
	ModelTotal     ModelLimit    `yaml:"model_total"` // of all boxes together
}

// DefaultLimits are the limits of an empty configuration.
func DefaultLimits() Limits {
	return Limits{
		Connections: 2048, NewConnections: 1000, Interceptions: 1024, Streams: 1024, Requests: 50000, Upstreams: 512,
		KernelFlows: 16384, DNSQueries: 500, QuotaPeriod: 24 * time.Hour, PeekTimeout: 10 * time.Second,
		Memory: 256 << 20,
	}
}

// MaxCount is the largest count that can be configured: a larger one must be a mistake.
const MaxCount = 1_000_000

// counts returns the limits that are numbers.
func (l *Limits) counts() map[policy.Limit]int {
	return map[policy.Limit]int{
		policy.LimitConnections: l.Connections, policy.LimitNewConnections: l.NewConnections, policy.LimitInterceptions: l.Interceptions,
		policy.LimitStreams: l.Streams, policy.LimitRequests: l.Requests, policy.LimitUpstreams: l.Upstreams, policy.LimitDNSQueries: l.DNSQueries,
	}
}

// sizes returns the limits that are bytes.
func (l *Limits) sizes() map[policy.Limit]Size {
	return map[policy.Limit]Size{policy.LimitSend: l.Send, policy.LimitReceive: l.Receive, policy.LimitQuota: l.Quota, policy.LimitMemory: l.Memory}
}

// sizesOf describes the valid range of each size, for errors.
var sizesOf = map[policy.Limit]string{
	policy.LimitSend: rates, policy.LimitReceive: rates, policy.LimitQuota: "1MiB or more, or 0 for no limit", policy.LimitMemory: "16MiB to 1TiB",
}

const rates = "64KiB to 12500000000, or 0 for no limit"

// BoxLimits returns the limits that can be changed for single boxes.
func (l *Limits) BoxLimits() (all policy.Limits) {
	for limit, n := range l.counts() {
		all[limit] = int64(n)
	}
	for limit, n := range l.sizes() {
		if all[limit] = int64(n); n == 0 {
			all[limit] = policy.Unlimited
		}
	}
	return all
}

// check finds limits that would refuse all traffic or never apply: only the byte rates and the quota can be turned off.
func (l *Limits) check(fail func(key, format string, args ...any)) {
	for limit, n := range l.counts() {
		if _, err := limit.Value(int64(n)); err != nil {
			fail("limits."+limit.String(), "%d is out of range; use 1 to %d", n, MaxCount)
		}
	}
	if l.KernelFlows < 1 || l.KernelFlows > MaxCount {
		fail("limits.kernel_flows", "%d is out of range; use 1 to %d", l.KernelFlows, MaxCount)
	}
	for limit, size := range l.sizes() {
		if _, err := limit.Value(int64(size)); err != nil {
			fail("limits."+limit.String(), "%v is out of range; use %s", size, sizesOf[limit])
		}
	}
	if l.QuotaPeriod < time.Minute || l.QuotaPeriod > 366*24*time.Hour {
		fail("limits.quota_period", "%v is out of range; use 1m to 8784h", l.QuotaPeriod)
	}
	if l.PeekTimeout < 100*time.Millisecond || l.PeekTimeout > 5*time.Minute {
		fail("limits.peek_timeout", "%v is out of range; use 100ms to 5m", l.PeekTimeout)
	}
	if l.ProcessMemory != 0 && (l.ProcessMemory < MinMemory || l.ProcessMemory > 1<<44) {
		fail("limits.process_memory", "%v is out of range; use %v to 16TiB, or 0 for what the host leaves", l.ProcessMemory, Size(MinMemory))
	}
}

// Quotas are the defaults for API keys without quotas of their own. Admin keys have no quotas.
type Quotas struct {
	Connections   int  `yaml:"connections"`
	Memory        Size `yaml:"memory"`
	Requests      int  `yaml:"requests"`
	Commands      int  `yaml:"commands"`
	Boxes         int  `yaml:"boxes"`
	Snapshots     int  `yaml:"snapshots"`
	SnapshotBytes Size `yaml:"snapshot_bytes"`
	URLs          int  `yaml:"urls"`
	Domains       int  `yaml:"domains"`
	Schedules     int  `yaml:"schedules"`
	Secrets       int  `yaml:"secrets"`
	Certificates  int  `yaml:"certificates_per_hour"`

	Model ModelLimit `yaml:"model"` // of all boxes that the key has made
}

// DefaultQuotas are the quotas of an empty configuration. A single user does not reach them.
func DefaultQuotas() Quotas {
	return Quotas{
		Connections: 512, Memory: 128 << 20, Requests: 256, Commands: 128, Boxes: 500, Snapshots: 200, SnapshotBytes: 50 << 30,
		URLs: 500, Domains: 50, Schedules: 200, Secrets: 100, Certificates: 20,
	}
}

// Limits returns the quotas in the form that package quota uses.
func (q Quotas) Limits() quota.Limits {
	var l quota.Limits
	for k, n := range q.byKind() {
		l[k] = n
	}
	return l
}

func (q Quotas) byKind() map[quota.Kind]int64 {
	return map[quota.Kind]int64{
		quota.Connections: int64(q.Connections), quota.Memory: int64(q.Memory), quota.Requests: int64(q.Requests), quota.Commands: int64(q.Commands),
		quota.Boxes: int64(q.Boxes), quota.Snapshots: int64(q.Snapshots), quota.SnapshotBytes: int64(q.SnapshotBytes), quota.URLs: int64(q.URLs),
		quota.Domains: int64(q.Domains), quota.Schedules: int64(q.Schedules), quota.Secrets: int64(q.Secrets), quota.Certificates: int64(q.Certificates),
	}
}

// minQuotaMemory is enough for a request with a body.
const minQuotaMemory = 1 << 20

// check finds quotas that would refuse all requests or never apply.
func (q Quotas) check(fail func(key, format string, args ...any)) {
	all := q.byKind()
	for _, k := range slices.Sorted(maps.Keys(all)) {
		least := int64(1)
		if k.InBytes() {
			least = minQuotaMemory
		}
		switch n := all[k]; {
		case n >= least && n <= k.Max():
		case k.InBytes():
			fail("quotas."+k.String(), "%v is out of range; use %v to %v", Size(n), Size(least), Size(k.Max()))
		default:
			fail("quotas."+k.String(), "%d is out of range; use %d to %d", n, least, k.Max())
		}
	}
}

// URLLimits bounds the requests of visitors of public URLs, and their timeouts.
type URLLimits struct {
	Requests          int           `yaml:"requests_per_second"`
	FailedCredentials int           `yaml:"failed_credentials_per_minute"`
	HeaderBytes       Size          `yaml:"header_bytes"`
	HeaderTimeout     time.Duration `yaml:"header_timeout"`
	IdleTimeout       time.Duration `yaml:"idle_timeout"`
	BodyTimeout       time.Duration `yaml:"body_timeout"`
	ConnectTimeout    time.Duration `yaml:"connect_timeout"`
	ResponseTimeout   time.Duration `yaml:"response_timeout"`
}

// DefaultURLLimits are the limits of an empty configuration.
func DefaultURLLimits() URLLimits {
	return URLLimits{
		Requests: 2000, FailedCredentials: 20, HeaderBytes: 64 << 10, HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BodyTimeout: time.Minute, ConnectTimeout: 10 * time.Second, ResponseTimeout: 5 * time.Minute,
	}
}

// check finds limits that would refuse all requests or never apply: these limits cannot be turned off.
func (l *URLLimits) check(fail func(key, format string, args ...any)) {
	if l.Requests < 1 || l.Requests > MaxCount {
		fail("ingress.limits.requests_per_second", "%d is out of range; use 1 to %d", l.Requests, MaxCount)
	}
	if l.FailedCredentials < 1 || l.FailedCredentials > MaxCount {
		fail("ingress.limits.failed_credentials_per_minute", "%d is out of range; use 1 to %d", l.FailedCredentials, MaxCount)
	}
	if l.HeaderBytes < 4<<10 || l.HeaderBytes > 64<<10 {
		fail("ingress.limits.header_bytes", "%v is out of range; use 4KiB to 64KiB", l.HeaderBytes)
	}
	for _, c := range []struct {
		key  string
		have time.Duration
		most time.Duration
	}{
		{"header_timeout", l.HeaderTimeout, 5 * time.Minute},
		{"idle_timeout", l.IdleTimeout, time.Hour},
		{"body_timeout", l.BodyTimeout, time.Hour},
		{"connect_timeout", l.ConnectTimeout, 5 * time.Minute},
		{"response_timeout", l.ResponseTimeout, 24 * time.Hour},
	} {
		if c.have < time.Second || c.have > c.most {
			fail("ingress.limits."+c.key, "%v is out of range; use 1s to %v", c.have, c.most)
		}
	}
}

// Bounds limit how much is kept in files: entries that are too old or exceed the size are removed, the oldest first.
type Bounds struct {
	Days int  `yaml:"days"`
	Size Size `yaml:"size"`
}

// Age returns the maximum age of entries.
func (b Bounds) Age() time.Duration { return time.Duration(b.Days) * 24 * time.Hour }

// check checks bounds. If mayBeOff is set, a size of 0 is allowed and turns the files off.
func (b Bounds) check(key string, mayBeOff bool, fail func(key, format string, args ...any)) {
	if b.Days < 1 || b.Days > 3660 {
		fail(key+".days", "%d is out of range; use 1 to 3660", b.Days)
	}
	if mayBeOff && b.Size == 0 {
		return
	}
	if b.Size < 1<<20 || b.Size > 1<<40 {
		fail(key+".size", "%v is out of range; use 1MiB to 1TiB", b.Size)
	}
}

// ModelLimit bounds what models may cost in a period; without tokens and usd: no limit.
type ModelLimit struct {
	Tokens int       `yaml:"tokens"`
	USD    llm.Money `yaml:"usd"`
	Per    string    `yaml:"per"`
}

// Limit returns the limit in the form of package llm.
func (m ModelLimit) Limit() llm.Limit {
	if m.Tokens <= 0 && m.USD == 0 {
		return llm.Limit{Per: llm.PerTotal}
	}
	return llm.Limit{Tokens: uint64(max(m.Tokens, 0)), USD: m.USD, Per: llm.Per(m.Per)}
}

// check finds limits that are out of range, and dollars without prices, which would refuse every request.
func (m ModelLimit) check(key string, prices Prices, fail func(key, format string, args ...any)) {
	if m.Tokens < 0 {
		fail(key+".tokens", "%d is out of range; use 1 to %d, or 0 for no limit", m.Tokens, int64(llm.MaxTokens))
	}
	if _, err := m.Limit().Check(); err != nil {
		fail(key, "%v", err)
	}
	if m.USD > 0 && len(prices) == 0 {
		fail(key+".usd", "needs prices: set prices; `gateway prices` prints an example")
	}
}

// Prices are the prices of models by name, in which * stands for any text.
type Prices map[string]ModelPrice

// ModelPrice is a price in US dollars per million tokens.
type ModelPrice struct {
	Input      *llm.Money `yaml:"input"`
	Output     *llm.Money `yaml:"output"`
	CacheRead  *llm.Money `yaml:"cache_read,omitempty"`  // nil: that of the input
	CacheWrite *llm.Money `yaml:"cache_write,omitempty"` // nil: twice that of the input
	// MaxOutput is the most output tokens of a response; 0: [budget.DefaultMaxOutput].
	MaxOutput int `yaml:"max_output,omitempty"`
}

// maxPrice is the highest price of a million tokens.
const maxPrice = 100_000 * llm.Dollar

// checkLimits checks the limits, the quotas and the prices that they need.
func (c *Config) checkLimits(fail func(key, format string, args ...any)) {
	c.Limits.check(fail)
	c.Quotas.check(fail)
	c.Prices.check(fail)
	if err := c.Meters.Check(); err != nil {
		fail("meters", "%v", err)
	}
	c.Limits.Model.check("limits.model", c.Prices, fail)
	c.Limits.ModelTotal.check("limits.model_total", c.Prices, fail)
	c.Quotas.Model.check("quotas.model", c.Prices, fail)
}

// check finds prices that are missing or out of range.
func (p Prices) check(fail func(key, format string, args ...any)) {
	for _, pattern := range slices.Sorted(maps.Keys(p)) {
		key, price := "prices."+pattern, p[pattern]
		if err := budget.CheckPattern(pattern); err != nil {
			fail("prices", "%q %v", pattern, err)
			continue
		}
		if price.Input == nil || price.Output == nil {
			fail(key, "needs input and output, in US dollars per million tokens")
		}
		for _, m := range []*llm.Money{price.Input, price.Output, price.CacheRead, price.CacheWrite} {
			if m != nil && *m > maxPrice {
				fail(key, "%v is out of range; use 0 to %v US dollars per million tokens", *m, maxPrice)
			}
		}
		if price.MaxOutput < 0 || price.MaxOutput > 1_000_000_000 {
			fail(key+".max_output", "%d is out of range; use 1 to 1000000000, or 0 for %d", price.MaxOutput, budget.DefaultMaxOutput)
		}
	}
	if len(p) > budget.MaxPrices {
		fail("prices", "has more than %d entries", budget.MaxPrices)
	}
}

// Table returns the table of prices.
func (p Prices) Table() (budget.Prices, error) {
	var list []budget.Price
	for pattern, price := range p {
		entry := budget.Price{Pattern: pattern, Input: ofToken(price.Input), Output: ofToken(price.Output), MaxOutput: uint64(max(price.MaxOutput, 0))}
		if entry.CacheRead = entry.Input; price.CacheRead != nil {
			entry.CacheRead = ofToken(price.CacheRead)
		}
		if entry.CacheWrite = 2 * entry.Input; price.CacheWrite != nil {
			entry.CacheWrite = ofToken(price.CacheWrite)
		}
		list = append(list, entry)
	}
	return budget.NewPrices(list)
}

// ofToken returns the price of one token, rounded up to [llm.Money].
func ofToken(million *llm.Money) llm.Money {
	if million == nil {
		return 0
	}
	return (*million + 1e6 - 1) / 1e6
}
