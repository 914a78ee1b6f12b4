package host

import (
	"errors"
	"sync"

	"boxgate/policy"
)

// inputs are everything that a box's policy is compiled from: what is the box's own, and what all boxes share. A policy
// that was compiled without one of them is another policy, so nothing in this package compiles one but [inputs.compile].
type inputs struct {
	spec      policy.Spec
	version   uint64
	headers   []policy.HeaderRule // the box's own
	global    []policy.HeaderRule // of every box
	tokens    policy.Secret       // what the tokens of its placeholders are made from
	protected *policy.Protected   // nil: not known, and every address is protected
	ceiling   *policy.Ceiling     // nil: the operator has set none
}

// errNoTokenKey refuses placeholders that would all have the same token, or none.
var errNoTokenKey = errors.New("the box has no key for its placeholders")

// compile makes the policy ready to decide. The error for mistakes in it is a *[policy.InvalidError].
func (in inputs) compile() (*policy.Compiled, error) {
	if in.tokens.Reveal() == "" {
		return nil, errNoTokenKey
	}
	rules := policy.WithTokens(in.rules(), in.tokens)
	return policy.CompileUnder(in.ceiling, in.spec, rules, in.protected, in.version)
}

// rules are the header rules that apply to the box.
func (in inputs) rules() []policy.HeaderRule { return policy.MergeHeaders(in.global, in.headers) }

// shared is what the policies of all boxes are compiled from. The zero value protects every address. Safe for concurrent
// use.
type shared struct {
	ceiling *policy.Ceiling // the operator's, of the configuration

	mu        sync.Mutex
	global    []policy.HeaderRule
	protected *policy.Protected
}

// inputs returns those of the inputs that all boxes share.
func (s *shared) inputs() inputs {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inputs{global: s.global, protected: s.protected, ceiling: s.ceiling}
}

// of returns what the policy of a box is compiled from at present, for a change to modify. The caller holds b.mu.
func (s *shared) of(b *box) inputs {
	in := s.inputs()
	in.spec, in.version, in.headers, in.tokens = b.spec, b.version, b.headers, b.record.PlaceholderKey
	return in
}

func (s *shared) setGlobal(rules []policy.HeaderRule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.global = rules
}

func (s *shared) setProtected(p *policy.Protected) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.protected = p
}
