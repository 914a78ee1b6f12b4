package policy

import (
	"boxgate/policy/name"
	"net/textproto"
	"slices"
	"strings"
)

// This file reads the "sign" member of a header rule.

const (
	maxSigned      = 4 << 10 // length of a template or format
	maxSignedParts = 32      // names in a template: what stands for one may be as long as a head
)

// signing reads {"aws": …} or {"hmac": …}.
func (p *headerParser) signing(at string, v value) (s Signing) {
	v.fields(at, `{"aws": …} or {"hmac": …}`, &p.problems, map[string]func(string, value){
		"aws":  func(at string, v value) { s.AWS = p.awsSigning(at, v) },
		"hmac": func(at string, v value) { s.HMAC = p.hmacSigning(at, v) },
	})
	if v.kind == kindObject && v.has("aws") == v.has("hmac") {
		p.add(at, `needs one of "aws" and "hmac"`)
	}
	return s
}

func (p *headerParser) awsSigning(at string, v value) *AWSSigning {
	s := &AWSSigning{}
	v.fields(at, `an object of "credentials", "region" and "service"`, &p.problems, map[string]func(string, value){
		"credentials": func(at string, v value) {
			s.Credentials = p.key(at, "credentials", v)
			if s.Credentials.Source != "" || s.Credentials.Value.Reveal() == "" {
				return
			}
			if _, err := ParseAWSCredentials(s.Credentials.Value); err != nil {
				p.add(at, "%s", err)
			}
		},
		"region":  func(at string, v value) { s.Regions = p.scopes(at, v) },
		"service": func(at string, v value) { s.Services = p.scopes(at, v) },
	})
	p.required(at, v, "credentials", "region", "service")
	return s
}

// checkRewrites refuses what would be set twice, and places without placeholders.
func (p *headerParser) checkRewrites(at string, r *HeaderRule) {
	if r.Places != 0 && len(r.Placeholders) == 0 {
		p.add(pointer(at, "places"), "is for placeholders, and there are none")
	}
	for _, h := range r.Headers {
		if r.Sign.Sets(h.Name) {
			p.add(pointer(pointer(at, "headers"), h.Name), "is set by the signature")
		}
	}
}

// key reads a value that signs.
func (p *headerParser) key(at, n string, v value) Key {
	text := p.value(at, n, v, false)
	if text.source == "" && text.literal.Reveal() == "" {
		p.add(at, "the value of %s is empty", name.Quote(n))
	}
	return Key{Value: text.literal, Source: text.source}
}

// required adds a problem for each key that an object lacks.
func (p *headerParser) required(at string, v value, keys ...string) {
	if v.kind != kindObject {
		return
	}
	for _, key := range keys {
		if !v.has(key) {
			p.add(pointer(at, key), "is missing")
		}
	}
}

// scopes reads a part of credential scopes: one, or a list of those that requests may choose from.
func (p *headerParser) scopes(at string, v value) []string {
	list := []string{v.text}
	if v.kind == kindList {
		list = v.strings(at, &p.problems)
	} else {
		v.string(at, &p.problems)
	}
	if len(list) == 0 || len(list) > 64 {
		p.add(at, "needs 1 to 64 entries")
	}
	for i, s := range list {
		if !isScope(s) {
			p.add(at, `entry %d is not a region or service: small letters, digits and '-', such as "eu-central-1" or "s3"`, i+1)
		}
	}
	return slices.Compact(list)
}

func isScope(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

func (p *headerParser) hmacSigning(at string, v value) *HMACSigning {
	s := &HMACSigning{Format: SignSignature, Encoding: "hex", Clock: "unix"}
	v.fields(at, `an object of "key", "header" and "template"`, &p.problems, map[string]func(string, value){
		"key":       func(at string, v value) { s.Key = p.key(at, "key", v) },
		"header":    func(at string, v value) { s.Header = p.headerName(at, v) },
		"format":    func(at string, v value) { s.Format = p.template(at, v, SignSignature, SignTimestamp) },
		"encoding":  func(at string, v value) { s.Encoding = p.oneOf(at, v, "hex", "base64") },
		"timestamp": func(at string, v value) { s.Timestamp, s.Clock = p.timestamp(at, v) },
		"template": func(at string, v value) {
			s.Template = p.template(at, v, SignTimestamp, "{method}", "{host}", "{path}", "{query}", "{target}", SignBody, SignBodyHash)
		},
	})
	p.required(at, v, "key", "header", "template")
	if n := strings.Count(s.Template, "{"); strings.Count(s.Template, SignBody) > 1 || n > maxSignedParts {
		p.add(pointer(at, "template"), "may have %s once, and %d names in all", SignBody, maxSignedParts)
	}
	if v.has("format") && !strings.Contains(s.Format, SignSignature) {
		p.add(pointer(at, "format"), "has no %s", SignSignature)
	}
	if flaw := headerBytesFlaw(s.Format); flaw != "" {
		p.add(pointer(at, "format"), "%s", flaw)
	}
	if s.Header != "" && foldHeader(s.Header) == foldHeader(s.Timestamp) {
		p.add(pointer(at, "timestamp"), "is the header of the signature; name another")
	}
	return s
}

func (p *headerParser) headerName(at string, v value) string {
	n := v.string(at, &p.problems)
	if flaw := headerNameFlaw(n); v.kind == kindText && flaw != "" {
		p.add(at, "%s %s", name.Quote(name.Shown(n, name.IsToken)), flaw)
	}
	return textproto.CanonicalMIMEHeaderKey(n)
}

// timestamp reads how the time is sent: {"header": name, "format": …}.
func (p *headerParser) timestamp(at string, v value) (header, clock string) {
	clock = "unix"
	v.fields(at, `an object of "header" and "format"`, &p.problems, map[string]func(string, value){
		"header": func(at string, v value) { header = p.headerName(at, v) },
		"format": func(at string, v value) { clock = p.oneOf(at, v, "unix", "unix_ms", "rfc3339") },
	})
	return header, clock
}

func (p *headerParser) oneOf(at string, v value, known ...string) string {
	if text := v.string(at, &p.problems); !slices.Contains(known, text) {
		p.add(at, "is not one of %s", strings.Join(known, ", "))
	}
	return v.text
}

// template reads a text in which names in braces are replaced: only those known.
func (p *headerParser) template(at string, v value, known ...string) string {
	text := v.string(at, &p.problems)
	if len(text) > maxSigned {
		p.add(at, "is %d bytes; the limit is %d", len(text), maxSigned)
		return ""
	}
	rest := text
	for _, name := range known {
		rest = strings.ReplaceAll(rest, name, "")
	}
	if strings.ContainsAny(rest, "{}") {
		p.add(at, "braces are for %s", strings.Join(known, ", "))
	}
	return text
}
