package rules

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"boxgate/api"
	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
	"boxgate/store"
)

// inputs holds everything that a box's policy is compiled from: the box's own settings and those shared by all boxes.
// Leaving out any of them compiles a different policy, so in this package only [inputs.compile] calls [policy.Compile].
type inputs struct {
	spec      policy.Spec
	leases    []store.Lease // temporary entries, added to spec while they last
	version   uint64
	headers   []policy.HeaderRule // rules of this box
	global    []policy.HeaderRule // rules of all boxes
	fleet     []policy.HeaderRule // rules of all boxes of all hosts of the fleet
	fence     func() bool         // whether fleet must not be used now
	tokens    name.Secret         // key that placeholder tokens are derived from
	protected *name.Protected     // nil: unknown, so every address is protected
	ceiling   *policy.Ceiling     // nil: no ceiling configured
	spent     bool                // the box has used up its quota
	upstream  *policy.HostUpstream
	source    policy.Source           // source addresses of its connections
	unusable  func(netip.Addr) string // why an address cannot be used as source now; "" if it can
	services  policy.Services         // nil: no services
	cluster   *policy.Cluster         // nil: no cluster
}

// errNoTokenKey refuses to compile placeholders without a key: every box would have the same tokens, or empty ones.
var errNoTokenKey = errors.New("the box has no key for its placeholders")

// compile compiles the policy. Mistakes in it are reported as a *[document.InvalidError].
func (in inputs) compile() (*policy.Compiled, error) {
	if in.tokens.Reveal() == "" {
		return nil, errNoTokenKey
	}
	o := policy.Options{
		Version: in.version, Headers: policy.WithTokens(in.rules(), in.tokens), Protected: in.protected, Ceiling: in.ceiling,
		Upstream: in.upstream, Fence: in.fence, Source: in.source, Unusable: in.unusable, Services: in.services, Cluster: in.cluster,
	}
	if in.spent {
		o.Withheld = policy.Withheld{Reason: name.ReasonQuota, Rule: "limits.quota"}
	}
	var spec policy.Spec
	spec, o.Audit = withLeases(in.spec, in.leases)
	return policy.Compile(spec, o)
}

// withLeases returns spec with the entries of leases added, and whether it is audited.
func withLeases(spec policy.Spec, leases []store.Lease) (_ policy.Spec, audit bool) {
	var allowed, denied []amend.Entry
	var requests []amend.Preceding
	for _, l := range leases {
		switch {
		case l.Audit:
			audit = audit || l.Allow && l.ExpiresAt.Sub(l.StartedAt) <= api.MaxAudit
			continue
		case l.Allow && l.Before != "":
			e, err := amend.ParseRequestEntry(l.Entry)
			if err == nil { // checked when the lease was made
				requests = append(requests, amend.Preceding{Entry: e, Rule: l.Before})
			}
			continue
		}
		e, err := amend.ParseEntry(l.Entry)
		switch {
		case err != nil && !l.Allow: // checked when the lease was made; a denial that cannot be parsed denies everything
			return policy.Spec{Mode: policy.ModeDenyAll}, false
		case err != nil:
		case l.Allow:
			allowed = append(allowed, e)
		default:
			denied = append(denied, e)
		}
	}
	spec = amend.Beside(spec, allowed, denied)
	spec, _ = amend.AllowRequests(spec, requests)
	if audit && spec.Mode == policy.ModeDenyAll {
		for _, e := range denied { // which deny-all has no list for, and the audit must not open
			spec = spec.Overruled(e.String())
		}
	}
	return spec, audit
}

// rules returns the header rules of the fleet merged with the global ones of this host, and these with the box's own. The latter take precedence.
func (in inputs) rules() []policy.HeaderRule {
	return policy.MergeHeaders(in.fleet, in.global, in.headers)
}

// Shared holds the policy inputs common to all boxes. The zero value protects every address. Safe for concurrent use.
type Shared struct {
	ceiling  *policy.Ceiling      // from the configuration
	upstream *policy.HostUpstream // from the configuration
	sources  []netip.Addr         // network.sources of the configuration
	services policy.Services      // network.services of the configuration; nil: no services
	cluster  *policy.Cluster      // network.cluster of the configuration; nil: no cluster
	clock    func() lease.Now     // nil: [lease.System]
	named    namedPolicies
	fence    func() bool // see inputs; set before s is in use

	mu            sync.Mutex
	global        []policy.HeaderRule
	fleet         []policy.HeaderRule // marked as such
	protected     *name.Protected
	hostAddresses []netip.Prefix // the host's addresses, among others
}

// NewShared returns a Shared without header rules, named policies or protected ranges. Every address is protected until
// they are set.
func NewShared(ceiling *policy.Ceiling, upstream *policy.HostUpstream, sources []netip.Addr) *Shared {
	return &Shared{ceiling: ceiling, upstream: upstream, sources: sources}
}

// WithServices sets the services that policies can list, and returns s. It must not be called once s is in use.
func (s *Shared) WithServices(services policy.Services) *Shared {
	s.services = services
	return s
}

// WithCluster sets the cluster that policies and the ceiling can list, and returns s. It must not be called once s is in use.
func (s *Shared) WithCluster(cluster *policy.Cluster) *Shared {
	s.cluster, s.ceiling = cluster, s.ceiling.WithCluster(cluster)
	return s
}

// Compile compiles a box's current policy. The caller holds the lock of b.
func (s *Shared) Compile(b *state.Box) (*policy.Compiled, error) { return s.inputsOf(b).compile() }

// CompileSpec compiles spec as the whole policy of a box, ignoring its leases. The caller holds the lock of b.
func (s *Shared) CompileSpec(b *state.Box, spec policy.Spec, version uint64) (*policy.Compiled, error) {
	in := s.inputsOf(b)
	in.spec, in.leases, in.version = spec, nil, version
	return in.compile()
}

// CheckNew reports mistakes in the policy and the header rules of a new box.
func (s *Shared) CheckNew(spec policy.Spec, headers []policy.HeaderRule) error {
	in := s.sharedInputs()
	in.spec, in.version, in.headers, in.tokens = spec, 1, headers, store.NewKey()
	_, err := in.compile()
	return err
}

// Rules returns the global header rules, of the fleet and of this host, merged with headers, which take precedence.
func (s *Shared) Rules(headers []policy.HeaderRule) []policy.HeaderRule {
	in := s.sharedInputs()
	in.headers = headers
	return in.rules()
}

// Named returns the policy called name. If it does not exist, the error refers to pointer in the request's document.
func (s *Shared) Named(name, pointer string) (policy.Spec, error) {
	return s.named.specOf(name, pointer)
}

// NamedFor is Named for a sandbox that begins to follow the policy; attached is nil for a launched box. The policy of a resource of
// Kubernetes is refused outside its namespace.
func (s *Shared) NamedFor(name, pointer string, attached *store.Attached) (policy.Spec, error) {
	return s.named.specFor(name, pointer, attached)
}

// LockNamed blocks changes of named policies until release is called. Call it before locking a box.
func (s *Shared) LockNamed() (release func()) {
	s.named.changing.RLock()
	return s.named.changing.RUnlock
}

// sharedInputs returns the shared part of the inputs.
func (s *Shared) sharedInputs() inputs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inputs{
		global: s.global, fleet: s.fleet, fence: s.fence, protected: s.protected, ceiling: s.ceiling, upstream: s.upstream, unusable: unusable(s.sources, s.hostAddresses),
		services: s.services, cluster: s.cluster,
	}
}

// unusable returns a function that explains why an address cannot be used as source, or returns "" if it can: it must be
// listed and present on the host.
func unusable(listed []netip.Addr, present []netip.Prefix) func(netip.Addr) string {
	return func(a netip.Addr) string {
		switch {
		case !slices.Contains(listed, a):
			return a.String() + " is not in network.sources"
		case !slices.Contains(present, netip.PrefixFrom(a, a.BitLen())):
			return a.String() + " is not an address of the host now"
		}
		return ""
	}
}

// inputsOf returns the current inputs of a box's policy, for a change to modify. The caller holds the lock of b.
func (s *Shared) inputsOf(b *state.Box) inputs {
	in := s.sharedInputs()
	in.leases = s.running(b.Leases)
	in.spec, in.version, in.headers, in.tokens = b.Spec, b.Version, b.Headers, b.Record.PlaceholderKey
	in.spent, in.source = b.Spent.Load(), b.Record.Source
	if b.Alone {
		in.global, in.fleet = nil, nil
	}
	return in
}

// now reads the clocks that leases are measured by.
func (s *Shared) now() lease.Now {
	if s.clock == nil {
		return lease.System()
	}
	return s.clock()
}

// running returns the leases that have not ended. Every compilation filters leases through it, so that no change applies
// an ended lease again.
func (s *Shared) running(leases []store.Lease) []store.Lease {
	if len(leases) == 0 {
		return nil
	}
	return lease.Running(leases, s.now())
}

// LastVersion returns the highest version that the policy of a stored box ever had, at a start. Leases that ended just
// before the gateway did may have been versions that are not stored: they are recorded first.
func (s *Shared) LastVersion(rules store.Rules, id policy.BoxID, leases []store.Lease) (last uint64, err error) {
	if ended := len(leases) - len(s.running(leases)); ended > 0 {
		if err := rules.NoteEnded(id, uint64(ended)); err != nil {
			last, errLast := rules.LastVersion(id)
			return last + uint64(ended), errLast // the store may be full: the numbers are not reused at least
		}
	}
	return rules.LastVersion(id)
}

// RebaseLeases returns stored leases rebased onto the clock of the current boot.
func (s *Shared) RebaseLeases(leases []store.Lease) (out []store.Lease) {
	for _, l := range leases {
		out = append(out, lease.Rebase(l, s.now()))
	}
	return out
}

func (s *Shared) setGlobal(rules []policy.HeaderRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.global = rules
}

func (s *Shared) setFleet(rules []policy.HeaderRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fleet = policy.OfFleet(rules)
}

// setProtected records the protected ranges, and the host's addresses that they were built from.
func (s *Shared) setProtected(p *name.Protected, present []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protected, s.hostAddresses = p, present
}
