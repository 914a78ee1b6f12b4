package policy

import (
	"cmp"
	"slices"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
)

// HeaderRule says what the gateway changes in the HTTPS requests of the hosts its pattern covers (port 443 if the
// pattern gives none). The most specific pattern that covers a host applies alone, so a rule that sets nothing takes its
// hosts out of wider rules.
//
// Rules of the same pattern are alternatives, which stand next to each other: of those the first whose Match covers the
// request applies alone, and if none does nothing is changed.
type HeaderRule struct {
	Pattern name.Pattern
	Match   *match.Match // nil: every request
	Scrub   bool         // the rule's secrets are masked in responses
	Shared  *SharedScrub // of the compiled rules of a host with several of which one scrubs; nil in rules as written
	Deny    bool         // the requests are refused; nothing else is given
	// Effects are what is done, by kind in the order of their keys, at most one of each.
	Effects []rule.Effect
	// Connection is what the effects do to connections. Only compiled rules have it, see [HeaderRule.OnConnections].
	Connection *rule.Connection
	// Request is what the effects do to requests and their responses. Only compiled rules have it, see [HeaderRule.OnRequests].
	Request *rule.Request
}

// OnConnections returns what the effects of the rule do to connections. Nothing is searched for if the rule is compiled.
func (r *HeaderRule) OnConnections() rule.Connection {
	if r.Connection != nil {
		return *r.Connection
	}
	return rule.Connections(r.Effects)
}

// OnRequests returns what the effects of the rule do to requests and their responses. Nothing is searched for if the rule is compiled. The
// result must not be modified.
func (r *HeaderRule) OnRequests() *rule.Request {
	if r.Request != nil {
		return r.Request
	}
	if len(r.Effects) == 0 {
		return &noRequest
	}
	does := rule.Requests(r.Effects)
	return &does
}

// noRequest is what rules without effects do.
var noRequest rule.Request

// SharedScrub is what responses of a host must not show whichever of its rules applied, or none. It must not be modified.
type SharedScrub struct {
	Literals []name.Secret // of all rules
	Sources  bool          // some rule sends what is not known before, such as a secret of the configuration
}

// MaxPlaceholders is how many placeholders the header rules of a box, or the global ones, may have. Each becomes an
// environment variable of every command, and the kernel limits how large an environment may be.
const MaxPlaceholders = 512

// CountPlaceholders returns how many placeholders the rules have.
func CountPlaceholders(rules []HeaderRule) (n int) {
	for _, r := range rules {
		n += len(r.Placeholders())
	}
	return n
}

// MaxHeaderHosts is how many hosts the header rules of a box, or the global ones, may name.
const MaxHeaderHosts = 256

// Limits of header rules.
const (
	MaxAlternatives = 64   // of one host
	maxHeaderRules  = 1024 // of all hosts, alternatives counted one by one
)

// Applies reports whether the rule changes or refuses anything, so that what is said to its hosts has to be read.
func (r HeaderRule) Applies() bool {
	return r.Deny || slices.ContainsFunc(r.Effects, isForBoxes)
}

// isForBoxes reports whether an effect is on what boxes send, or may be.
func isForBoxes(e rule.Effect) bool {
	_, own := e.(rule.ProxyLogin)
	return !own
}

// Placeholders returns the placeholders of the rule, sorted by variable.
func (r *HeaderRule) Placeholders() []rule.Placeholder {
	if does := r.OnRequests(); does.Replacer != nil {
		return does.Replacer.Placeholders()
	}
	return nil
}

// scrubsByDefault reports whether the rule scrubs if that is not said.
func (r *HeaderRule) scrubsByDefault() bool {
	return rule.ScrubsByDefault(r.Effects)
}

// refusesValues returns an effect of the rule beside which no values may be set; nil if there is none.
func (r HeaderRule) refusesValues() rule.WithoutValues {
	for _, e := range r.Effects {
		if e, ok := e.(rule.WithoutValues); ok {
			return e
		}
	}
	return nil
}

// MergeHeaders returns the rules of a box over the global ones: a box's rules replace the global rules of the same
// pattern (and port), all alternatives at once, the other global rules stay. The result is sorted by pattern; it shares
// its lists with the arguments, which must not be modified afterwards.
func MergeHeaders(global, box []HeaderRule) []HeaderRule {
	own := map[name.Pattern]bool{}
	for _, r := range box {
		own[r.key()] = true
	}
	out := slices.DeleteFunc(slices.Clone(global), func(r HeaderRule) bool { return own[r.key()] })
	out = append(out, box...)
	SortRules(out)
	return out
}

// CountHosts returns how many hosts the rules are for: alternatives are for the same.
func CountHosts(rules []HeaderRule) int {
	hosts := map[name.Pattern]bool{}
	for _, r := range rules {
		hosts[r.key()] = true
	}
	return len(hosts)
}

// WithoutHosts returns the rules without those for the given patterns, and the patterns that no rule has.
func WithoutHosts(rules []HeaderRule, hosts []name.Pattern) (rest []HeaderRule, unknown []name.Pattern) {
	rest = slices.Clone(rules)
	for _, h := range hosts {
		before := len(rest)
		rest = slices.DeleteFunc(rest, func(r HeaderRule) bool { return r.key() == h.WithDefaultPort(name.HTTPSPort) })
		if len(rest) == before {
			unknown = append(unknown, h)
		}
	}
	return rest, unknown
}

// key is the pattern with its port filled in: two rules with the same key are for the same hosts.
func (r HeaderRule) key() name.Pattern { return r.Pattern.WithDefaultPort(name.HTTPSPort) }

// SortRules sorts by pattern. Alternatives keep their order.
func SortRules(rules []HeaderRule) {
	slices.SortStableFunc(rules, func(a, b HeaderRule) int { return cmp.Compare(a.key().String(), b.key().String()) })
}

// SendsAlike reports whether a rule adds to requests what another does, and sends them to the same place, so that one that began under the other may be sent
// under it.
func (r *HeaderRule) SendsAlike(o *HeaderRule) bool {
	return slices.EqualFunc(r.Effects, o.Effects, sameEffect)
}

func byKey(a, b rule.Effect) int { return cmp.Compare(a.Key(), b.Key()) }

func sameEffect(a, b rule.Effect) bool { return a.Key() == b.Key() && a.Equal(b) }

// WithTokens returns the rules with the tokens that a box with this key sees for placeholders. The result shares with rules what it does not
// change.
func WithTokens(rules []HeaderRule, key name.Secret) []HeaderRule {
	out := slices.Clone(rules)
	for i := range out {
		out[i].Effects = rule.WithTokens(out[i].Effects, key)
	}
	return out
}
