package amend

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// maxRequestPath is the length of the longest path of an entry for requests, in bytes.
const maxRequestPath = 1024

// RequestEntry is an entry for the requests with one method, and with one path or all paths with a prefix, to a name on a port. As a
// text it is such as "GET api.example.com:443/v1/users" or "DELETE api.example.com:443/v1/*".
type RequestEntry struct {
	method string
	host   name.Name
	port   uint16
	path   string // a prefix if it ends with a star
}

// NewRequestEntry returns an entry. A path that ends with a star is a prefix. Paths that request rules always deny, because servers
// may interpret them differently, are refused.
func NewRequestEntry(host name.Name, port uint16, method, path string) (RequestEntry, error) {
	e := RequestEntry{method, host, port, path}
	literal, _ := strings.CutSuffix(path, "*")
	switch {
	case host.IsZero() || port == 0:
		return RequestEntry{}, errors.New("requests are to a name on a port")
	case method == "" || len(method) > 32 || strings.ContainsFunc(method, func(r rune) bool { return r < 'A' || r > 'Z' }):
		return RequestEntry{}, fmt.Errorf("%s is not an HTTP method in capitals", name.Quote(method))
	case method == "CONNECT" || method == "TRACE" || method == "TRACK":
		return RequestEntry{}, fmt.Errorf("the method %s is always refused", method)
	case len(path) > maxRequestPath:
		return RequestEntry{}, fmt.Errorf("the path is longer than %d bytes", maxRequestPath)
	case !strings.HasPrefix(path, "/") || strings.Contains(literal, "*") || match.IsAmbiguous(literal):
		return RequestEntry{}, fmt.Errorf("%s is not a path without a query that every server interprets alike, with a star at its end or without one", name.Quote(path))
	}
	return e, nil
}

// ParseRequestEntry reads the text of an entry.
func ParseRequestEntry(s string) (RequestEntry, error) {
	method, rest, _ := strings.Cut(s, " ")
	slash := strings.IndexByte(rest, '/')
	if slash < 0 {
		return RequestEntry{}, fmt.Errorf("%s has no path", name.Quote(s))
	}
	host, digits, err := net.SplitHostPort(rest[:slash])
	if err != nil {
		return RequestEntry{}, fmt.Errorf("%s has no port", name.Quote(s))
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return RequestEntry{}, fmt.Errorf("%s has no port", name.Quote(s))
	}
	n, err := name.Parse(host)
	if err != nil {
		return RequestEntry{}, err
	}
	return NewRequestEntry(n, uint16(port), method, rest[slash:])
}

// String returns the text of the entry.
func (e RequestEntry) String() string {
	return e.method + " " + net.JoinHostPort(e.host.String(), strconv.Itoa(int(e.port))) + e.path
}

// rule returns the request rule that allows exactly the requests of the entry.
func (e RequestEntry) rule() match.RequestRule {
	return match.RequestRule{
		Hosts: []string{net.JoinHostPort(e.host.String(), strconv.Itoa(int(e.port)))}, Methods: []string{e.method}, Paths: []string{e.path}, Action: match.ActionAllow,
	}
}

// Request returns a request of the entry: the one with the shortest path.
func (e RequestEntry) Request(box policy.BoxID) policy.Request {
	path := strings.TrimSuffix(e.path, "*")
	return policy.Request{Stage: policy.StageHTTP, Box: box, Name: e.host, Port: e.port, Protocol: policy.TCP, Method: e.method, Path: path}
}

// Denying returns the request rule that denies every request of the entry, whatever its query, header fields and body. Otherwise
// the error is the reason: an allowing rule before another rule could open more than the entry.
func (e RequestEntry) Denying(c *policy.Compiled) (match.RequestRule, error) {
	r, ok := c.RuleOf(e.Request(""))
	asked := e.rule()
	asked.Match = &match.Match{Methods: asked.Methods, Path: match.Exact(e.path)}
	if prefix, isPrefix := strings.CutSuffix(e.path, "*"); isPrefix {
		asked.Match.Path = match.Prefix(prefix)
	}
	switch {
	case !ok || r.Action != match.ActionDeny:
		return match.RequestRule{}, errors.New("no request rule of the policy denies it")
	case !r.DecidesAllOf(asked):
		return match.RequestRule{}, errors.New("the request rule that denies it depends on more than the method and the path, or denies only some of these requests")
	}
	return r, nil
}

// AllowBefore returns a policy that allows the requests of the entry, by a request rule directly before the first rule with a digest of
// [DigestOf]. It returns false, and the policy as it is, if there is no such rule or the policy has no space for another. The argument is
// not modified.
func (e RequestEntry) AllowBefore(s policy.Spec, digest string) (policy.Spec, bool) {
	s, placed := AllowRequests(s, []Preceding{{e, digest}})
	return s, placed == 1
}

// Preceding is an entry for requests, with the digest of the request rule that it precedes.
type Preceding struct {
	Entry RequestEntry
	Rule  string
}

// AllowRequests is [RequestEntry.AllowBefore] for several entries. It returns the number of entries that the policy then has.
func AllowRequests(s policy.Spec, list []Preceding) (next policy.Spec, placed int) {
	waiting := map[string][]match.RequestRule{} // by the digest
	for _, p := range list {
		waiting[p.Rule] = append(waiting[p.Rule], p.Entry.rule())
	}
	var rules []match.RequestRule
	space, sinceDenial := match.MaxRules-len(s.Rules), 0
	for _, r := range s.Rules {
		if r.Action == match.ActionDeny && len(waiting) > 0 {
			digest := DigestOf(r)
			for _, own := range waiting[digest] {
				switch {
				case slices.ContainsFunc(rules[sinceDenial:], func(o match.RequestRule) bool { return reflect.DeepEqual(o, own) }):
					placed++
				case space > 0:
					rules, space, placed = append(rules, own), space-1, placed+1
				}
			}
			delete(waiting, digest)
		}
		if rules = append(rules, r); r.Action == match.ActionDeny {
			sinceDenial = len(rules)
		}
	}
	if placed > 0 {
		s.Rules = rules
	}
	return s, placed
}

// DigestOf identifies a request rule by its content.
func DigestOf(r match.RequestRule) string {
	text, err := json.Marshal(r)
	if err != nil {
		return "" // of no rule in a policy: each was read from JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
