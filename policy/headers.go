package policy

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// HeaderRule contains the gateway's changes to the HTTPS requests of hosts that the pattern covers. A pattern without a port
// means port 443. Only the most specific pattern that covers a host applies, so a rule without effects exempts its hosts from
// wider rules.
//
// Rules of the same pattern are alternatives and adjacent in lists: the first whose Match covers the request applies alone.
// If no alternative matches, the request is unchanged.
type HeaderRule struct {
	Pattern name.Pattern
	Match   *match.Match // nil: every request
	Scrub   bool         // the rule's secrets are masked in responses
	Shared  *SharedScrub // set in compiled rules if any rule of the host scrubs and there are several; nil in rules as written
	Deny    bool         // the requests are refused; there are no effects
	Fleet   bool         // the rule is one of the fleet, see [OfFleet]; not part of a rule as written
	// Effects has at most one effect of each kind, sorted by key.
	Effects []rule.Effect
	// Connection is the plan for connections, in compiled rules only. Use [HeaderRule.OnConnections].
	Connection *rule.Connection
	// Request is the plan for requests and their responses, in compiled rules only. Use [HeaderRule.OnRequests].
	Request *rule.Request
}

// OnConnections returns the plan of the rule for connections, which must not be modified. Compiled rules have it ready.
func (r *HeaderRule) OnConnections() *rule.Connection {
	if r.Connection != nil {
		return r.Connection
	}
	if len(r.Effects) == 0 {
		return &noConnection
	}
	does := rule.Connections(r.Effects)
	return &does
}

// OnRequests returns the plan of the rule for requests and their responses, which must not be modified. Compiled rules have it ready.
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

// noRequest and noConnection are the plans of rules without effects.
var (
	noRequest    rule.Request
	noConnection rule.Connection
)

// SharedScrub is masked in all responses of a host, whether or not one of its rules applied to the request. It must not be modified.
type SharedScrub struct {
	Literals []name.Secret // of all rules
	Sources  bool          // some rule sends values that are not literals, such as secrets of the configuration
}

// MaxPlaceholders is the largest number of placeholders in the header rules of a box, and in the global ones. Each becomes an
// environment variable of every command, and the kernel limits the size of an environment.
const MaxPlaceholders = 512

// CountPlaceholders returns the number of placeholders of the rules.
func CountPlaceholders(rules []HeaderRule) (n int) {
	for _, r := range rules {
		n += len(r.Placeholders())
	}
	return n
}

// MaxHeaderHosts is the largest number of patterns in the header rules of a box, and in the global ones.
const MaxHeaderHosts = 256

// Limits of header rules.
const (
	MaxAlternatives = 64   // of one host
	maxHeaderRules  = 1024 // of all hosts, including alternatives
)

// Applies reports whether the rule refuses or changes traffic of boxes, so that the traffic of its hosts must be intercepted.
func (r HeaderRule) Applies() bool {
	return r.Deny || slices.ContainsFunc(r.Effects, isForBoxes)
}

// isForBoxes reports whether an effect applies to traffic of boxes.
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

// scrubsByDefault reports whether the rule scrubs without the member scrub.
func (r *HeaderRule) scrubsByDefault() bool {
	return rule.ScrubsByDefault(r.Effects)
}

// refusesValues returns an effect of the rule that is incompatible with values, or nil.
func (r HeaderRule) refusesValues() rule.WithoutValues {
	for _, e := range r.Effects {
		if e, ok := e.(rule.WithoutValues); ok {
			return e
		}
	}
	return nil
}

// MergeHeaders merges sets of rules, such as the global ones and a box's. The rules of a later set for a pattern (with its port) replace all
// rules of the earlier ones for the same pattern. The result is sorted by pattern. It shares its lists with the arguments, which must not be modified
// afterwards.
func MergeHeaders(sets ...[]HeaderRule) (out []HeaderRule) {
	for _, set := range sets {
		own := map[name.Pattern]bool{}
		for _, r := range set {
			own[r.key()] = true
		}
		out = append(slices.DeleteFunc(out, func(r HeaderRule) bool { return own[r.key()] }), set...)
	}
	SortRules(out)
	return out
}

// OfFleet returns the rules, marked as rules of the fleet: while [Options.Fence] is closed, requests to their hosts are refused.
func OfFleet(rules []HeaderRule) []HeaderRule {
	marked := slices.Clone(rules)
	for i := range marked {
		marked[i].Fleet = true
	}
	return marked
}

// CountHosts returns the number of patterns of the rules. Alternatives have the same pattern.
func CountHosts(rules []HeaderRule) int {
	hosts := map[name.Pattern]bool{}
	for _, r := range rules {
		hosts[r.key()] = true
	}
	return len(hosts)
}

// WithoutHosts removes the rules with the given patterns. It also returns the patterns without rules.
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

// key returns the pattern with a port. Rules with the same key apply to the same hosts.
func (r HeaderRule) key() name.Pattern { return r.Pattern.WithDefaultPort(name.HTTPSPort) }

// SameHosts reports whether two rules are for the same hosts: a pattern without a port is one with 443.
func (r HeaderRule) SameHosts(o HeaderRule) bool { return r.key() == o.key() }

// SortRules sorts by pattern. Alternatives keep their order.
func SortRules(rules []HeaderRule) {
	slices.SortStableFunc(rules, func(a, b HeaderRule) int { return cmp.Compare(a.key().String(), b.key().String()) })
}

// SendsAlike reports whether two rules make the same changes and send requests to the same place, so that a request that began under one may
// continue under the other.
func (r *HeaderRule) SendsAlike(o *HeaderRule) bool {
	return slices.EqualFunc(r.Effects, o.Effects, sameEffect)
}

func byKey(a, b rule.Effect) int { return cmp.Compare(a.Key(), b.Key()) }

func sameEffect(a, b rule.Effect) bool { return a.Key() == b.Key() && a.Equal(b) }

// WithTokens returns the rules with the tokens of the box that has this key. The result shares everything else with the argument.
func WithTokens(rules []HeaderRule, key name.Secret) []HeaderRule {
	out := slices.Clone(rules)
	for i := range out {
		out[i].Effects = rule.WithTokens(out[i].Effects, key)
	}
	return out
}

// MarshalHeaderRules is the inverse of [ParseHeaderRules], without tokens. The result contains literal values in the clear and must be sealed
// before it is stored.
func MarshalHeaderRules(rules []HeaderRule) ([]byte, error) {
	return json.Marshal(WriteHeaderRules(rules))
}

// WriteHeaderRules returns the document of header rules as a value for encoding/json, with literal values in the clear.
func WriteHeaderRules(rules []HeaderRule) map[string]any {
	entries := map[string][]map[string]any{}
	for _, r := range rules {
		entries[r.Pattern.String()] = append(entries[r.Pattern.String()], writeEntry(r))
	}
	out := map[string]any{}
	for host, list := range entries {
		if out[host] = list; len(list) == 1 {
			out[host] = list[0]
		}
	}
	return out
}

func writeEntry(r HeaderRule) map[string]any {
	if on := r.OnConnections(); on.Login != nil || on.Proxy != nil { // the only member of its entry
		return map[string]any{r.Effects[0].Key(): r.Effects[0].Document()}
	}
	out := map[string]any{}
	if r.Match != nil {
		out["match"] = r.Match
	}
	if !r.Applies() {
		out[kinds.Compact.Key()] = map[string]any{} // the full form, which may have a match
	}
	if r.Scrub != r.scrubsByDefault() {
		out["scrub"] = r.Scrub
	}
	if r.Deny {
		out["deny"] = true
	}
	for _, e := range r.Effects {
		if d := e.Document(); d != nil {
			out[e.Key()] = d
		}
		if w, ok := e.(rule.WideEffect); ok {
			maps.Copy(out, w.Members())
		}
	}
	if onlyTexts(out) {
		out[kinds.Compact.Key()] = map[string]any{} // or programs that do not know the kinds would send their members as headers
	}
	return out
}

// onlyTexts reports whether the members of an entry are all texts, as those of compact entries.
func onlyTexts(entry map[string]any) bool {
	for _, v := range entry {
		if _, ok := v.(string); !ok {
			return false
		}
	}
	return true
}
