package host

import (
	"errors"

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
}

// errNoTokenKey refuses placeholders that would all have the same token, or none.
var errNoTokenKey = errors.New("the box has no key for its placeholders")

// compile makes the policy ready to decide. The error for mistakes in it is a *[policy.InvalidError].
func (in inputs) compile() (*policy.Compiled, error) {
	if in.tokens.Reveal() == "" {
		return nil, errNoTokenKey
	}
	rules := policy.WithTokens(policy.MergeHeaders(in.global, in.headers), in.tokens)
	return policy.Compile(in.spec, rules, in.protected, in.version)
}

// inputs returns what the policy of a box is compiled from now; a change replaces in it what it changes. The caller
// holds b.mu.
func (h *Host) inputs(b *box) inputs {
	in := h.sharedInputs()
	in.spec, in.version, in.headers, in.tokens = b.spec, b.version, b.headers, b.record.PlaceholderKey
	return in
}

// sharedInputs returns those of the inputs that all boxes share.
func (h *Host) sharedInputs() inputs {
	return inputs{global: h.globalRules(), protected: h.protected.Load()}
}
