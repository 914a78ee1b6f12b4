package rules

import (
	"errors"
	"net/netip"
	"slices"
	"sync"

	"boxgate/host/lease"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/amend"
	"boxgate/policy/name"
	"boxgate/store"
)

// inputs are everything that a box's policy is compiled from: what is the box's own, and what all boxes share. A policy
// that was compiled without one of them is another policy, so nothing in this package compiles one but [inputs.compile].
type inputs struct {
	spec      policy.Spec
	leases    []store.Lease // beside spec, for as long as they last
	version   uint64
	headers   []policy.HeaderRule // the box's own
	global    []policy.HeaderRule // of every box
	tokens    name.Secret         // what the tokens of its placeholders are made from
	protected *name.Protected     // nil: not known, and every address is protected
	ceiling   *policy.Ceiling     // nil: the operator has set none
	spent     bool                // the box has used up its quota
	upstream  *policy.HostUpstream
	source    policy.Source           // from where its connections leave
	unusable  func(netip.Addr) string // why nothing can leave from an address now; "": it can
}

// errNoTokenKey refuses placeholders that would all have the same token, or none.
var errNoTokenKey = errors.New("the box has no key for its placeholders")

// compile makes the policy ready to decide. The error for mistakes in it is a *[document.InvalidError].
func (in inputs) compile() (*policy.Compiled, error) {
	if in.tokens.Reveal() == "" {
		return nil, errNoTokenKey
	}
	o := policy.Options{
		Version: in.version, Headers: policy.WithTokens(in.rules(), in.tokens), Protected: in.protected, Ceiling: in.ceiling,
		Upstream: in.upstream, Source: in.source, Unusable: in.unusable,
	}
	if in.spent {
		o.Withheld = policy.Withheld{Reason: name.ReasonQuota, Rule: "limits.quota"}
	}
	return policy.Compile(besides(in.spec, in.leases), o)
}

// besides returns what a policy is while leases last.
func besides(spec policy.Spec, leases []store.Lease) policy.Spec {
	var allowed, denied []amend.Entry
	for _, l := range leases {
		e, err := amend.ParseEntry(l.Entry)
		switch {
		case err != nil && !l.Allow: // checked when it was made: a denial that cannot be read denies everything
			return policy.Spec{Mode: policy.ModeDenyAll}
		case err != nil:
		case l.Allow:
			allowed = append(allowed, e)
		default:
			denied = append(denied, e)
		}
	}
	return amend.Beside(spec, allowed, denied)
}

// rules are the header rules that apply to the box.
func (in inputs) rules() []policy.HeaderRule { return policy.MergeHeaders(in.global, in.headers) }

// Shared is what the policies of all boxes are compiled from. The zero value protects every address. Safe for concurrent
// use.
type Shared struct {
	ceiling  *policy.Ceiling      // the operator's, of the configuration,
	upstream *policy.HostUpstream // as is this
	sources  []netip.Addr         // that boxes can be given to leave from, likewise
	clock    func() lease.Now     // nil: [lease.System]
	named    namedPolicies

	mu        sync.Mutex
	global    []policy.HeaderRule
	protected *name.Protected
	present   []netip.Prefix // the addresses of the host among others
}

// NewShared makes what all boxes share. Header rules, named policies and protected ranges are not known yet: every address is protected.
func NewShared(ceiling *policy.Ceiling, upstream *policy.HostUpstream, sources []netip.Addr) *Shared {
	return &Shared{ceiling: ceiling, upstream: upstream, sources: sources}
}

// Compile compiles the policy of a box as it is. The caller holds the lock of b.
func (s *Shared) Compile(b *state.Box) (*policy.Compiled, error) { return s.of(b).compile() }

// CompileSpec compiles a policy for a box that says all that the box may do, its leases included. The caller holds the lock of b.
func (s *Shared) CompileSpec(b *state.Box, spec policy.Spec, version uint64) (*policy.Compiled, error) {
	in := s.of(b)
	in.spec, in.leases, in.version = spec, nil, version
	return in.compile()
}

// CheckNew finds mistakes in the policy and the header rules of a new box.
func (s *Shared) CheckNew(spec policy.Spec, headers []policy.HeaderRule) error {
	in := s.inputs()
	in.spec, in.version, in.headers, in.tokens = spec, 1, headers, store.NewKey()
	_, err := in.compile()
	return err
}

// Rules returns the header rules of all boxes with those of one over them.
func (s *Shared) Rules(headers []policy.HeaderRule) []policy.HeaderRule {
	in := s.inputs()
	in.headers = headers
	return in.rules()
}

// Named returns what a named policy says. The error for one that does not exist is for the place where it is named.
func (s *Shared) Named(name, pointer string) (policy.Spec, error) {
	return s.named.specOf(name, pointer)
}

// HoldNamed keeps named policies from changing until release is called. It is taken before the locks of boxes.
func (s *Shared) HoldNamed() (release func()) {
	s.named.changing.RLock()
	return s.named.changing.RUnlock
}

// inputs returns those of the inputs that all boxes share.
func (s *Shared) inputs() inputs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inputs{
		global: s.global, protected: s.protected, ceiling: s.ceiling, upstream: s.upstream, unusable: unusable(s.sources, s.present),
	}
}

// unusable returns what says why nothing can leave from an address, "" if it can, of those that are listed and the host has.
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

// of returns what the policy of a box is compiled from at present, for a change to modify. The caller holds the lock of b.
func (s *Shared) of(b *state.Box) inputs {
	in := s.inputs()
	in.leases = s.running(b.Leases)
	in.spec, in.version, in.headers, in.tokens = b.Spec, b.Version, b.Headers, b.Record.PlaceholderKey
	in.spent, in.source = b.Spent.Load(), b.Record.Source
	return in
}

// now reads the clocks by which leases end.
func (s *Shared) now() lease.Now {
	if s.clock == nil {
		return lease.System()
	}
	return s.clock()
}

// running returns the leases that have not ended. Whoever compiles a policy compiles these alone, so that none is put in
// force again, whatever the reason is for which a policy is compiled.
func (s *Shared) running(leases []store.Lease) []store.Lease {
	if len(leases) == 0 {
		return nil
	}
	return lease.Running(leases, s.now())
}

// Anchored are the leases of a stored policy, held to the clock of this boot.
func (s *Shared) Anchored(leases []store.Lease) (out []store.Lease) {
	for _, l := range leases {
		out = append(out, lease.Anchored(l, s.now()))
	}
	return out
}

func (s *Shared) setGlobal(rules []policy.HeaderRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.global = rules
}

// setProtected notes the protected ranges, and the addresses of the host as they were made of.
func (s *Shared) setProtected(p *name.Protected, present []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protected, s.present = p, present
}
