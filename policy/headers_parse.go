package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// ParseHeaders reads header rules in their compact form: host pattern → header name → value, such as
// {"api.example.com": {"Authorization": "Bearer …"}}. The result is sorted by pattern. The error is an
// *[document.InvalidError] that lists every problem with pointers relative to m and does not quote values.
func ParseHeaders(m map[string]map[string]string) ([]HeaderRule, error) {
	doc := document.Value{Kind: document.Object}
	for _, host := range slices.Sorted(maps.Keys(m)) {
		entry := document.Value{Kind: document.Object}
		for _, name := range slices.Sorted(maps.Keys(m[host])) {
			entry.Keys = append(entry.Keys, name)
			entry.Items = append(entry.Items, document.Value{Kind: document.Text, Text: m[host][name]})
		}
		doc.Keys, doc.Items = append(doc.Keys, host), append(doc.Items, entry)
	}
	return (&headerParser{}).rules(doc)
}

// ParseHeaderRules reads a JSON document of header rules: host pattern → entry, or a list of entries that are
// alternatives. An entry whose members are all strings is compact, as for [ParseHeaders]; any other is the full form
//
//	{"match": {…}, "headers": {name: value}, "remove": [name…], "placeholders": {variable: value}, "places": [place…],
//	 "query": {name: value}, "sign": {…}, "scrub": bool, "deny": bool, "client_certificate": {"secret": name},
//	 "forward_url": "https://…", "response_headers": {"remove": [name…]}, "upstream_tls": "legacy", "client_tls": "legacy", "lenient": bool}
//
// where a value is a string, {"value": string} or {"secret": name}, with optional "prefix" and "suffix" in headers and queries, and
// "encode" in headers. Without the member scrub, rules with placeholders or a query scrub.
// The entry of a server that does not speak HTTP has the name of its protocol as its only key, see [rule.LoginKind]. find finds
// the secrets that values name; nil accepts any. Errors are as for ParseHeaders.
func ParseHeaderRules(data []byte, find rule.Finder) ([]HeaderRule, error) {
	p := &headerParser{rule.Context{Find: find}}
	doc, ok := document.Parse(data, &p.Problems)
	if !ok {
		return nil, p.Err()
	}
	return p.rules(doc)
}

// headerParser reads header rules and collects their problems.
type headerParser struct {
	rule.Context
}

func (p *headerParser) rules(doc document.Value) ([]HeaderRule, error) {
	if doc.Kind != document.Object {
		p.Add("", "is %s; want an object of host patterns", doc.Kind)
		return nil, p.Err()
	}
	if len(doc.Keys) > MaxHeaderHosts {
		p.Add("", "there are %d hosts; the limit is %d", len(doc.Keys), MaxHeaderHosts)
		return nil, p.Err()
	}
	rules := make([]HeaderRule, 0, len(doc.Keys))
	seen := map[name.Pattern]string{}
	for i, host := range doc.Keys {
		at := document.Pointer("", host)
		of, ok := p.host(at, host, doc.Items[i])
		if !ok || len(of) == 0 {
			continue
		}
		if other, twice := seen[of[0].key()]; twice {
			p.Add(at, "%s and %s are the same hosts; keep one of them", name.Quote(other), name.Quote(host))
			continue
		}
		seen[of[0].key()] = host
		rules = append(rules, of...)
	}
	if len(rules) > maxHeaderRules {
		p.Add("", "there are %d rules; the limit is %d", len(rules), maxHeaderRules)
	}
	if n := CountPlaceholders(rules); n > MaxPlaceholders {
		p.Add("", "there are %d placeholders; the limit is %d", n, MaxPlaceholders)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	SortRules(rules)
	return rules, nil
}

// host reads the entry of one host pattern, or its list of alternatives; ok is false if the pattern is not valid.
func (p *headerParser) host(at, host string, entry document.Value) (rules []HeaderRule, ok bool) {
	pattern, err := name.ParsePattern(host)
	if err == nil && pattern.IsWildcard() && pattern.Name().IsZero() {
		err = fmt.Errorf(`%s would send the headers to every host; use a name, or "*.name"`, name.Quote(host))
	}
	if err != nil {
		p.Add(at, "%s", err)
	}
	p.Host = pattern
	entries := entry.Items
	switch {
	case entry.Kind != document.List:
		entries = []document.Value{entry}
		rules = []HeaderRule{p.rule(at, entry)}
	case len(entry.Items) == 0:
		p.Add(at, "is an empty list; use {} for a rule that changes nothing")
	case p.TooMany(at, len(entry.Items), MaxAlternatives):
	default:
		for i, item := range entry.Items {
			if loginKind(item) != nil {
				p.Add(document.Element(at, i), "is a login, which has no alternatives: what would tell them apart is in requests")
			}
			rules = append(rules, p.rule(document.Element(at, i), item))
		}
	}
	for i := range rules {
		rules[i].Pattern = pattern
		if kind := loginKind(entries[i]); kind != nil && err == nil {
			p.loginHost(at, pattern, kind)
		}
	}
	return rules, err == nil
}

// loginKind returns the kind of an entry with a login; nil for other entries. Compact entries are never logins.
func loginKind(entry document.Value) rule.LoginKind {
	if entry.Kind != document.Object || isCompact(entry) {
		return nil
	}
	for _, key := range entry.Keys {
		if k := kinds.Login(key); k != nil {
			return k
		}
	}
	return nil
}

// login reads the entry of a server that does not speak HTTP.
func (p *headerParser) login(at string, entry document.Value) (effects []rule.Effect) {
	if len(entry.Keys) > 1 {
		p.Add(at, "has a login, which stands alone: nothing else can be done with a protocol other than HTTP")
	}
	for i, key := range entry.Keys {
		if kind := kinds.Login(key); kind != nil {
			if e := kind.Parse(document.Pointer(at, key), entry.Items[i], &p.Context); e != nil {
				effects = append(effects, e)
			}
		}
	}
	return effects
}

// loginHost adds the mistakes in the pattern of a login.
func (p *headerParser) loginHost(at string, pattern name.Pattern, kind rule.LoginKind) {
	switch {
	case pattern.IsWildcard():
		p.Add(at, "is a wildcard; a login is for one host, as the connection itself does not say which of them it is for")
	case pattern.Port() == 0:
		p.Add(at, "has no port; a login is for one, as in %s", name.Quote(fmt.Sprintf("%s:%d", pattern.Name(), kind.UsualPort())))
	case !kind.OnWebPorts() && (isWeb(pattern.Port()) || pattern.Port() == portDoT):
		p.Add(at, "has a port of HTTP or DNS, where nothing else is spoken")
	}
}

// rule reads one entry.
func (p *headerParser) rule(at string, entry document.Value) (r HeaderRule) {
	switch {
	case isCompact(entry):
		p.Entry = document.Value{} // there are no other members
		if e := kinds.Compact.Parse(at, entry, &p.Context); e != nil {
			r.Effects = append(r.Effects, e)
		}
		return r
	case loginKind(entry) != nil:
		r.Effects = p.login(at, entry)
		return r
	}
	before := len(p.List)
	p.Entry = entry
	known := p.entryKeys(at, &r)
	for _, key := range entry.Keys {
		if _, ok := known[key]; !ok && document.Nearest(key, known) == "" {
			key = name.Shown(key, name.IsToken)
			p.Add(document.Pointer(at, key), `unknown key %s; beside other values than strings, header names go under "headers"`, name.Quote(key))
		}
	}
	unsorted := len(p.List)
	entry.Fields(at, "an object of headers", &p.Problems, known)
	sortByMember(at, entry, p.List[unsorted:])
	if !entry.Has("scrub") {
		r.Scrub = r.scrubsByDefault()
	}
	slices.SortFunc(r.Effects, byKey)
	for _, e := range r.Effects {
		if c, ok := e.(rule.Checker); ok {
			c.Check(at, r.Effects, &p.Problems)
		}
	}
	switch {
	case len(p.List) > before:
	case r.Deny && (r.Scrub || len(r.Effects) > 0):
		p.Add(document.Pointer(at, "deny"), "refuses the requests, so nothing else can be done with them; give match alone beside it")
	case rule.SetsValues(r.Effects) && r.refusesValues() != nil:
		e := r.refusesValues()
		p.Add(document.Pointer(at, e.Key()), "%s", e.RefusesValues())
	case r.Scrub && !rule.Sends(r.Effects):
		p.Add(document.Pointer(at, "scrub"), "has nothing to look for: the rule has neither headers nor placeholders")
	}
	return r
}

// entryKeys returns the functions that read the members of an entry into r, by key.
func (p *headerParser) entryKeys(at string, r *HeaderRule) map[string]func(string, document.Value) {
	known := map[string]func(string, document.Value){
		"match": func(at string, v document.Value) {
			r.Match = match.Read(at, v, &p.Problems)
			match.Compile(at, *r.Match, &p.Problems)
		},
		"scrub": func(at string, v document.Value) { r.Scrub = p.Flag(at, v) },
		"deny":  func(at string, v document.Value) { r.Deny = p.Flag(at, v) },
	}
	for _, kind := range kinds.All {
		read := func(at string, v document.Value) {
			if e := kind.Parse(at, v, &p.Context); e != nil {
				r.Effects = append(r.Effects, e)
			}
		}
		known[kind.Key()] = read
		for _, m := range kinds.Further(kind) { // read together with the member of Key
			known[m.Key] = func(string, document.Value) {
				if !p.Entry.Has(kind.Key()) {
					read(document.Pointer(at, kind.Key()), document.Value{})
				}
			}
		}
	}
	return known
}

// sortByMember sorts the problems of an entry in the order of its members, as a [rule.Wide] kind reads several members at the same time.
func sortByMember(at string, entry document.Value, list []document.Problem) {
	member := func(p document.Problem) int {
		key, _, _ := strings.Cut(strings.TrimPrefix(p.Pointer, at+"/"), "/")
		return slices.IndexFunc(entry.Keys, func(k string) bool { return document.Pointer("", name.Shown(k, name.IsToken)) == "/"+key })
	}
	slices.SortStableFunc(list, func(a, b document.Problem) int { return cmp.Compare(member(a), member(b)) })
}

// isCompact reports whether an entry has only header names and literal values. The key of a kind whose member is a string, such as
// forward_url, is not accepted as the name of a header: the requests would be sent to their server.
func isCompact(entry document.Value) bool {
	isText := func(k rule.Kind) bool { return k.Form().Kind() == reflect.String && entry.Has(k.Key()) }
	return entry.Kind == document.Object && !slices.ContainsFunc(kinds.All, isText) &&
		!slices.ContainsFunc(entry.Items, func(v document.Value) bool { return v.Kind != document.Text })
}

// ReadHeaderRules is [ParseHeaderRules] for a parsed document, whose rules may name any secret.
func ReadHeaderRules(doc document.Value) ([]HeaderRule, error) { return (&headerParser{}).rules(doc) }
