package policy

import (
	"boxgate/policy/name"
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
)

// ParseHeaders reads header rules in their compact form: host pattern → header name → value, such as
// {"api.example.com": {"Authorization": "Bearer …"}}. The rules come back sorted by pattern. The error is an
// *[InvalidError] that lists every problem; its pointers are relative to m, and it never holds a value.
func ParseHeaders(m map[string]map[string]string) ([]HeaderRule, error) {
	doc := value{kind: kindObject}
	for _, host := range slices.Sorted(maps.Keys(m)) {
		entry := value{kind: kindObject}
		for _, name := range slices.Sorted(maps.Keys(m[host])) {
			entry.keys = append(entry.keys, name)
			entry.items = append(entry.items, value{kind: kindText, text: m[host][name]})
		}
		doc.keys, doc.items = append(doc.keys, host), append(doc.items, entry)
	}
	return (&headerParser{}).rules(doc)
}

// ParseHeaderRules reads a JSON document of header rules: host pattern → entry, or a list of entries that are
// alternatives. An entry whose members are all strings is compact, as for [ParseHeaders]; any other is the full form
//
//	{"match": {…}, "headers": {name: value}, "remove": [name…], "placeholders": {variable: value}, "places": [place…],
//	 "query": {name: value}, "sign": {…}, "scrub": bool, "deny": bool, "client_certificate": {"secret": name},
//	 "forward_url": "https://…"}
//
// where a value is a string, {"value": string} or {"secret": name}, in headers and queries with "prefix" and "suffix"
// around it, in headers with "encode". A rule with placeholders or a query scrubs unless it says otherwise.
// The entry of a server that does not speak HTTP has the name of its protocol as its only key, see [Login]. known reports
// whether there is a secret of that name; nil accepts any. Errors are as for ParseHeaders.
func ParseHeaderRules(data []byte, known func(secret string) bool) ([]HeaderRule, error) {
	p := &headerParser{known: known}
	doc, ok := parseDocument(data, &p.problems)
	if !ok {
		return nil, p.err()
	}
	return p.rules(doc)
}

// headerParser reads header rules and collects their problems.
type headerParser struct {
	problems
	known func(string) bool
}

func (p *headerParser) rules(doc value) ([]HeaderRule, error) {
	if doc.kind != kindObject {
		p.add("", "is %s; want an object of host patterns", doc.kind)
		return nil, p.err()
	}
	if len(doc.keys) > MaxHeaderHosts {
		p.add("", "there are %d hosts; the limit is %d", len(doc.keys), MaxHeaderHosts)
		return nil, p.err()
	}
	rules := make([]HeaderRule, 0, len(doc.keys))
	seen := map[name.Pattern]string{}
	for i, host := range doc.keys {
		at := pointer("", host)
		of, ok := p.host(at, host, doc.items[i])
		if !ok || len(of) == 0 {
			continue
		}
		if other, twice := seen[of[0].key()]; twice {
			p.add(at, "%s and %s are the same hosts; keep one of them", name.Quote(other), name.Quote(host))
			continue
		}
		seen[of[0].key()] = host
		rules = append(rules, of...)
	}
	if len(rules) > maxHeaderRules {
		p.add("", "there are %d rules; the limit is %d", len(rules), maxHeaderRules)
	}
	if n := CountPlaceholders(rules); n > MaxPlaceholders {
		p.add("", "there are %d placeholders; the limit is %d", n, MaxPlaceholders)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	sortRules(rules)
	return rules, nil
}

// host reads the entry of one host pattern, or its list of alternatives; ok is false if the pattern is not valid.
func (p *headerParser) host(at, host string, entry value) (rules []HeaderRule, ok bool) {
	pattern, err := name.ParsePattern(host)
	if err == nil && pattern.IsWildcard() && pattern.Name().IsZero() {
		err = fmt.Errorf(`%s would send the headers to every host; use a name, or "*.name"`, name.Quote(host))
	}
	if err != nil {
		p.add(at, "%s", err)
	}
	switch {
	case entry.kind != kindList:
		rules = []HeaderRule{p.rule(at, entry)}
	case len(entry.items) == 0:
		p.add(at, "is an empty list; use {} for a rule that changes nothing")
	case tooMany(at, len(entry.items), maxAlternatives, &p.problems):
	default:
		for i, item := range entry.items {
			if isLogin(item) {
				p.add(element(at, i), "is a login, which has no alternatives: what would tell them apart is in requests")
			}
			rules = append(rules, p.rule(element(at, i), item))
		}
	}
	for i := range rules {
		rules[i].Pattern = pattern
		if rules[i].Login != nil && err == nil {
			p.loginHost(at, pattern, rules[i].Login)
		}
	}
	return rules, err == nil
}

// rule reads one entry.
func (p *headerParser) rule(at string, entry value) (rule HeaderRule) {
	switch {
	case isCompact(entry):
		rule.Headers = p.headers(at, entry)
		return rule
	case isLogin(entry):
		rule.Login = p.login(at, entry)
		return rule
	}
	before := len(p.list)
	known := p.entryKeys(&rule)
	for _, key := range entry.keys {
		if _, ok := known[key]; !ok && nearest(key, known) == "" {
			key = name.Shown(key, name.IsToken)
			p.add(pointer(at, key), `unknown key %s; beside other values than strings, header names go under "headers"`, name.Quote(key))
		}
	}
	entry.fields(at, "an object of headers", &p.problems, known)
	if !entry.has("scrub") {
		rule.Scrub = rule.scrubsByDefault()
	}
	p.checkRemoved(at, &rule)
	p.checkRewrites(at, &rule)
	switch {
	case len(p.list) > before:
	case rule.Deny && (rule.secretive() || rule.Scrub || rule.Client != nil || rule.Forward != nil):
		p.add(pointer(at, "deny"), "refuses the requests, so nothing else can be done with them; give match alone beside it")
	case rule.Forward != nil && rule.setsValues():
		p.add(pointer(at, "forward_url"), "sends the requests to another host, so nothing that sets values can stand beside it")
	case rule.Scrub && !rule.secretive():
		p.add(pointer(at, "scrub"), "has nothing to look for: the rule has neither headers nor placeholders")
	}
	return rule
}

// entryKeys returns how to read each key of an entry into rule.
func (p *headerParser) entryKeys(rule *HeaderRule) map[string]func(string, value) {
	flag := func(to *bool) func(string, value) {
		return func(at string, v value) {
			if *to = v.truth; v.kind != kindBool {
				p.add(at, "is %s; want true or false", v.kind)
			}
		}
	}
	return map[string]func(string, value){
		"match": func(at string, v value) {
			rule.Match = readMatch(at, v, &p.problems)
			checkMatch(at, *rule.Match, &p.problems)
		},
		"headers":            func(at string, v value) { rule.Headers = append(rule.Headers, p.headers(at, v)...) },
		"remove":             func(at string, v value) { rule.Headers = append(rule.Headers, p.removed(at, v)...) },
		"placeholders":       func(at string, v value) { rule.Placeholders = p.placeholders(at, v) },
		"scrub":              flag(&rule.Scrub),
		"deny":               flag(&rule.Deny),
		"client_certificate": func(at string, v value) { rule.Client = p.clientCertificate(at, v) },
		"places":             func(at string, v value) { rule.Places = p.places(at, v) },
		"query":              func(at string, v value) { rule.Query = p.query(at, v) },
		"sign":               func(at string, v value) { rule.Sign = p.signing(at, v) },
		"forward_url":        func(at string, v value) { rule.Forward = p.forward(at, v) },
	}
}

// clientCertificate reads {"secret": name} or {"certificate": {"secret": name}, "key": {"secret": name}}.
func (p *headerParser) clientCertificate(at string, v value) *ClientCertificate {
	var c ClientCertificate
	both := ""
	part := func(to *string) func(string, value) {
		return func(at string, v value) {
			v.fields(at, `{"secret": name}`, &p.problems, map[string]func(string, value){
				"secret": func(at string, v value) { *to = p.source(at, v) },
			})
			if v.kind == kindObject && !v.has("secret") {
				p.add(at, `has no "secret"`)
			}
		}
	}
	v.fields(at, "an object with secret, or with certificate and key", &p.problems, map[string]func(string, value){
		"secret":      func(at string, v value) { both = p.source(at, v) },
		"certificate": part(&c.Certificate),
		"key":         part(&c.Key),
	})
	switch {
	case v.kind != kindObject:
	case v.has("secret") && (v.has("certificate") || v.has("key")):
		p.add(at, `has "secret" beside "certificate" or "key"; give one secret that holds both, or two`)
	case v.has("secret"):
		return &ClientCertificate{both, both}
	case !v.has("certificate") || !v.has("key"):
		p.add(at, `needs "secret", or "certificate" and "key"`)
	}
	return &c
}

// forward reads the URL of a proxy.
func (ps *problems) forward(at string, v value) *ForwardURL {
	text := v.string(at, ps)
	if v.kind != kindText {
		return nil
	}
	f, err := ParseForward(text)
	if err != nil {
		ps.add(at, "%v", err)
	}
	return &f
}

// removed reads the names of headers to remove.
func (p *headerParser) removed(at string, v value) []Header {
	names := v.strings(at, &p.problems)
	if tooMany(at, len(names), maxHostHeaders, &p.problems) {
		return nil
	}
	headers := make([]Header, 0, len(names))
	for i, n := range names {
		if flaw := headerNameFlaw(n); flaw != "" {
			p.add(element(at, i), "%s %s", name.Quote(name.Shown(n, name.IsToken)), strings.Replace(flaw, "cannot be set", "cannot be removed", 1))
		}
		headers = append(headers, Header{Name: textproto.CanonicalMIMEHeaderKey(n), Value: name.NewSecret(""), Remove: true})
	}
	return headers
}

// checkRemoved sorts the headers of a rule and refuses those that are removed twice, or set as well.
func (p *headerParser) checkRemoved(at string, rule *HeaderRule) {
	sortHeaders(rule.Headers)
	seen := map[string]bool{}
	for _, h := range rule.Headers {
		seen[foldHeader(h.Name)] = seen[foldHeader(h.Name)] || !h.Remove
	}
	removed := map[string]bool{}
	for _, h := range rule.Headers {
		switch n := foldHeader(h.Name); {
		case !h.Remove:
		case seen[n]:
			p.add(pointer(at, "remove"), "%s is set as well: every variant that the box sends is removed then anyway", name.Quote(h.Name))
		case removed[n]:
			p.add(pointer(at, "remove"), "%s is there twice", name.Quote(h.Name))
		default:
			removed[n] = true
		}
	}
}

func sortHeaders(headers []Header) {
	slices.SortFunc(headers, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
}

// isCompact reports whether an entry has only header names and literal values. The one key of a rule whose value is a text is
// no name of a header: else the requests would go to their server.
func isCompact(entry value) bool {
	return entry.kind == kindObject && !entry.has("forward_url") &&
		!slices.ContainsFunc(entry.items, func(v value) bool { return v.kind != kindText })
}

func (p *headerParser) headers(at string, v value) []Header {
	if v.kind != kindObject {
		p.add(at, "is %s; want an object of header names and values", v.kind)
		return nil
	}
	if len(v.keys) > maxHostHeaders {
		p.add(at, "there are %d headers; the limit for one host is %d", len(v.keys), maxHostHeaders)
		return nil
	}
	headers := make([]Header, 0, len(v.keys))
	seen := map[string]string{}
	for i, n := range v.keys {
		shown := name.Shown(n, name.IsToken)
		at := pointer(at, shown)
		if flaw := headerNameFlaw(n); flaw != "" {
			p.add(at, "%s %s", name.Quote(shown), flaw)
		} else if other, twice := seen[foldHeader(n)]; twice {
			p.add(at, "%s and %s are the same header to a server; keep one of them", name.Quote(other), name.Quote(n))
		}
		seen[foldHeader(n)] = n
		text := p.value(at, shown, v.items[i], true)
		headers = append(headers, Header{
			Name: textproto.CanonicalMIMEHeaderKey(n), Value: text.literal, Source: text.source,
			Prefix: text.prefix, Suffix: text.suffix, Basic: text.basic, User: text.user,
		})
	}
	sortHeaders(headers)
	return headers
}

func (p *headerParser) placeholders(at string, v value) []Placeholder {
	if v.kind != kindObject {
		p.add(at, "is %s; want an object of variables and values", v.kind)
		return nil
	}
	if len(v.keys) > maxHostPlaceholders {
		p.add(at, "there are %d placeholders; the limit for one host is %d", len(v.keys), maxHostPlaceholders)
		return nil
	}
	placeholders := make([]Placeholder, 0, len(v.keys))
	for i, n := range v.keys {
		shown := name.Shown(n, name.IsWordByte)
		at := pointer(at, shown)
		if flaw := variableFlaw(n); flaw != "" {
			p.add(at, "%s %s", name.Quote(shown), flaw)
		}
		text := p.value(at, shown, v.items[i], false)
		if text.source == "" && text.literal.Reveal() == "" {
			p.add(at, "the value of %s is empty", name.Quote(shown))
		}
		placeholders = append(placeholders, Placeholder{Variable: n, Value: text.literal, Source: text.source})
	}
	slices.SortFunc(placeholders, func(a, b Placeholder) int { return cmp.Compare(a.Variable, b.Variable) })
	return placeholders
}

// headerText is where a value comes from: a literal or the name of a secret.
type headerText struct {
	literal                name.Secret
	source, prefix, suffix string
	user                   string
	basic                  bool
}

// value reads a literal or the name of a secret. affixes says whether the secret may have a prefix and suffix.
func (p *headerParser) value(at, n string, v value, affixes bool) (text headerText) {
	text.literal = name.NewSecret("")
	if v.kind == kindText {
		text.literal = p.literal(at, n, v.text)
		return text
	}
	known := map[string]func(string, value){
		"value":  func(at string, v value) { text.literal = p.literal(at, n, v.string(at, &p.problems)) },
		"secret": func(at string, v value) { text.source = p.source(at, v) },
	}
	if affixes {
		known["prefix"] = func(at string, v value) { text.prefix = p.affix(at, v, false) }
		known["suffix"] = func(at string, v value) { text.suffix = p.affix(at, v, true) }
		known["encode"] = func(at string, v value) { text.basic = p.oneOf(at, v, "basic") == "basic" }
		known["user"] = func(at string, v value) { text.user = p.user(at, v) }
	}
	v.fields(at, `a string, {"secret": name} or {"value": string}`, &p.problems, known)
	if v.kind != kindObject {
		return text
	}
	switch literal, secret := v.has("value"), v.has("secret"); {
	case literal == secret:
		p.add(at, `needs one of "secret" and "value"`)
	case literal && (v.has("prefix") || v.has("suffix")):
		p.add(at, `"prefix" and "suffix" go around a secret; write them into the value`)
	case v.has("user") && !v.has("encode"):
		p.add(pointer(at, "user"), `is for "encode": "basic"`)
	case v.has("encode") && (v.has("prefix") || v.has("suffix")):
		p.add(at, `"encode" makes the whole value; leave "prefix" and "suffix" out`)
	case text.basic && literal:
		text.literal, text.basic, text.user = name.NewSecret(BasicCredentials(text.user, text.literal.Reveal())), false, ""
	}
	return text
}

// BasicCredentials returns the value of Authorization for basic authentication (RFC 7617).
func BasicCredentials(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func (p *headerParser) user(at string, v value) string {
	user := v.string(at, &p.problems)
	if flaw := headerBytesFlaw(user); flaw != "" {
		p.add(at, "%s", flaw)
	}
	if strings.Contains(user, ":") || len(user) > 256 {
		p.add(at, "is not a user of basic authentication: at most 256 bytes without a colon")
	}
	return user
}

func (p *headerParser) literal(at, n, text string) name.Secret {
	if flaw := headerValueFlaw(text); flaw != "" {
		p.add(at, "the value of %s %s", name.Quote(n), flaw)
	}
	return name.NewSecret(text)
}

func (p *headerParser) source(at string, v value) string {
	name := v.string(at, &p.problems)
	switch {
	case v.kind != kindText:
	case !IsSecretName(name):
		p.add(at, "is not the name of a secret: letters, digits, '.', '_' and '-', at most 64") // perhaps the secret itself
	case p.known != nil && !p.known(name):
		p.add(at, "there is no secret of this name in the gateway's configuration")
	}
	return name
}

func (p *headerParser) affix(at string, v value, suffix bool) string {
	text := v.string(at, &p.problems)
	if flaw := affixFlaw(text, suffix); flaw != "" {
		p.add(at, "%s", flaw)
	}
	return text
}
