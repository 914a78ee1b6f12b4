package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
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

// ParseHeaderRules reads a JSON document of header rules: host pattern → entry. An entry whose members are all strings
// is compact, as for [ParseHeaders]; any other is the full form
//
//	{"headers": {name: value}, "placeholders": {variable: value}, "scrub": bool}
//
// where a value is a string, {"value": string} or {"secret": name}, in headers with "prefix" and "suffix" around it.
// known reports whether there is a secret of that name; nil accepts any. Errors are as for ParseHeaders.
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
	seen := map[Pattern]string{}
	for i, host := range doc.keys {
		at := pointer("", host)
		rule, ok := p.rule(at, host, doc.items[i])
		if !ok {
			continue
		}
		if other, twice := seen[rule.key()]; twice {
			p.add(at, "%s and %s are the same hosts; keep one of them", quoted(other), quoted(host))
			continue
		}
		seen[rule.key()] = host
		rules = append(rules, rule)
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

// rule reads one entry; ok is false if its pattern is not valid.
func (p *headerParser) rule(at, host string, entry value) (rule HeaderRule, ok bool) {
	pattern, err := ParsePattern(host)
	if err == nil && pattern.wild && pattern.name.IsZero() {
		err = fmt.Errorf(`%s would send the headers to every host; use a name, or "*.name"`, quoted(host))
	}
	if err != nil {
		p.add(at, "%s", err)
	}
	rule.Pattern = pattern
	if isCompact(entry) {
		rule.Headers = p.headers(at, entry)
		return rule, err == nil
	}
	before := len(p.list)
	known := map[string]func(string, value){
		"headers":      func(at string, v value) { rule.Headers = p.headers(at, v) },
		"placeholders": func(at string, v value) { rule.Placeholders = p.placeholders(at, v) },
		"scrub": func(at string, v value) {
			if rule.Scrub = v.truth; v.kind != kindBool {
				p.add(at, "is %s; want true or false", v.kind)
			}
		},
	}
	for _, key := range entry.keys {
		if _, ok := known[key]; !ok && nearest(key, known) == "" {
			key = nameShown(key, isToken)
			p.add(pointer(at, key), `unknown key %s; beside other values than strings, header names go under "headers"`, quoted(key))
		}
	}
	entry.fields(at, "an object of headers", &p.problems, known)
	if rule.Scrub && !rule.Applies() && len(p.list) == before {
		p.add(pointer(at, "scrub"), "has nothing to look for: the rule has neither headers nor placeholders")
	}
	return rule, err == nil
}

// isCompact reports whether an entry has only header names and literal values.
func isCompact(entry value) bool {
	return entry.kind == kindObject &&
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
	for i, name := range v.keys {
		shown := nameShown(name, isToken)
		at := pointer(at, shown)
		if flaw := headerNameFlaw(name); flaw != "" {
			p.add(at, "%s %s", quoted(shown), flaw)
		} else if other, twice := seen[foldHeader(name)]; twice {
			p.add(at, "%s and %s are the same header to a server; keep one of them", quoted(other), quoted(name))
		}
		seen[foldHeader(name)] = name
		text := p.value(at, shown, v.items[i], true)
		headers = append(headers, Header{
			Name: textproto.CanonicalMIMEHeaderKey(name), Value: text.literal, Source: text.source,
			Prefix: text.prefix, Suffix: text.suffix,
		})
	}
	slices.SortFunc(headers, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
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
	for i, name := range v.keys {
		shown := nameShown(name, isWordByte)
		at := pointer(at, shown)
		if flaw := variableFlaw(name); flaw != "" {
			p.add(at, "%s %s", quoted(shown), flaw)
		}
		text := p.value(at, shown, v.items[i], false)
		if text.source == "" && text.literal.Reveal() == "" {
			p.add(at, "the value of %s is empty", quoted(shown))
		}
		placeholders = append(placeholders, Placeholder{Variable: name, Value: text.literal, Source: text.source})
	}
	slices.SortFunc(placeholders, func(a, b Placeholder) int { return cmp.Compare(a.Variable, b.Variable) })
	return placeholders
}

// headerText is where a value comes from: a literal or the name of a secret.
type headerText struct {
	literal                Secret
	source, prefix, suffix string
}

// value reads a literal or the name of a secret. affixes says whether the secret may have a prefix and suffix.
func (p *headerParser) value(at, name string, v value, affixes bool) (text headerText) {
	text.literal = NewSecret("")
	if v.kind == kindText {
		text.literal = p.literal(at, name, v.text)
		return text
	}
	known := map[string]func(string, value){
		"value":  func(at string, v value) { text.literal = p.literal(at, name, v.string(at, &p.problems)) },
		"secret": func(at string, v value) { text.source = p.source(at, v) },
	}
	if affixes {
		known["prefix"] = func(at string, v value) { text.prefix = p.affix(at, v, false) }
		known["suffix"] = func(at string, v value) { text.suffix = p.affix(at, v, true) }
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
	}
	return text
}

func (p *headerParser) literal(at, name, text string) Secret {
	if flaw := headerValueFlaw(text); flaw != "" {
		p.add(at, "the value of %s %s", quoted(name), flaw)
	}
	return NewSecret(text)
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
