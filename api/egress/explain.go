package egress

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
	"boxgate/policy/content"
	"boxgate/policy/match"
	"boxgate/policy/name"
)

// explainBody describes a hypothetical request.
type explainBody struct {
	Host     string `json:"host,omitempty" doc:"name, if known"`
	IP       string `json:"ip,omitempty" doc:"address, if known"`
	Port     *int64 `json:"port,omitempty" doc:"absent: 443" min:"1" max:"65535"`
	Protocol string `json:"protocol,omitempty" doc:"absent: tcp" enum:"tcp udp icmp"`
	Method   string `json:"method,omitempty" doc:"of an HTTP request"`
	Path     string `json:"path,omitempty" doc:"of an HTTP request, without the query"`

	Query   *string           `json:"query,omitempty" doc:"of an HTTP request, without the question mark; absent: not known"`
	Headers map[string]string `json:"headers,omitempty" doc:"all headers of an HTTP request; absent: not known"`
	Body    *string           `json:"body,omitempty" doc:"of an HTTP request, for rules on MCP and GraphQL messages, without content coding; JSON unless headers contain a Content-Type. Absent: not known, except of GET, HEAD and DELETE, which have none"`

	Resolve bool `json:"resolve,omitempty" doc:"also look host up as for the box, unless ip is given, and decide about each of its addresses; a name that the policy denies is not looked up"`
}

// decisionView is a decision.
type decisionView struct {
	Verdict  string      `json:"verdict" enum:"allow deny"`
	Reason   name.Reason `json:"reason"`
	Rule     string      `json:"rule,omitempty" doc:"the rule that decided, as written"`
	Flaw     string      `json:"flaw,omitempty" doc:"why the messages of the request cannot be read"`
	Version  uint64      `json:"version"`
	Named    string      `json:"named,omitempty" doc:"the named policy that the box follows, in addition to its leases"`
	DialName bool        `json:"dial_name,omitempty" doc:"the decision is about the name: the gateway dials one of its addresses and decides about that address again"`
	Beaten   []string    `json:"beaten,omitempty" doc:"entries of the policy for the destination that would have decided otherwise: denied ones win, or with precedence: specific the longer name or prefix"`
	Unknown  []string    `json:"unknown,omitempty" doc:"query, headers, body: rules for the host depend on them and they were not given, or not read (the body of a metered request to a model), so the decision may differ for actual requests"`

	Addresses   []addressView `json:"addresses,omitempty" doc:"with resolve: the addresses of host, at most 64 of them"`
	LookupError string        `json:"lookup_error,omitempty" doc:"with resolve: why host has no address"`
}

// addressView is the decision about one address of a name.
type addressView struct {
	Address string      `json:"address"`
	Verdict string      `json:"verdict" enum:"allow deny"`
	Reason  name.Reason `json:"reason"`
	Rule    string      `json:"rule,omitempty"`
}

// maxAddresses bounds the addresses in an answer. The decision depends on all of them.
const maxAddresses = 64

func (b *explainBody) request(box policy.BoxID) (policy.Request, error) {
	var p problem.List
	req := policy.Request{Stage: policy.StageConn, Box: box, Port: 443, Protocol: policy.Protocol(b.Protocol), Method: b.Method, Path: b.Path}
	var err error
	if b.Host == "" && b.IP == "" {
		p.Add("", "host or ip is required")
	}
	if b.Host != "" {
		if req.Name, err = name.Parse(b.Host); err != nil {
			p.Add("/host", "%v", err)
		}
	}
	if b.IP != "" {
		if req.Addr, err = netip.ParseAddr(b.IP); err != nil || req.Addr.Zone() != "" {
			p.Add("/ip", "must be an IPv4 or IPv6 address")
		}
	}
	if b.Port != nil {
		if *b.Port < 1 || *b.Port > 65535 {
			p.Add("/port", "must be between 1 and 65535")
		}
		req.Port = uint16(*b.Port)
	}
	switch req.Protocol {
	case "":
		req.Protocol = policy.TCP
	case policy.TCP, policy.UDP:
	case policy.ICMP:
		req.Port = 0
	default:
		p.Add("/protocol", "must be tcp, udp or icmp")
	}
	if b.Path != "" && !strings.HasPrefix(b.Path, "/") {
		p.Add("/path", "must begin with /")
	}
	if b.Query != nil {
		if req.Query = *b.Query; strings.HasPrefix(req.Query, "?") || strings.Contains(req.Query, "#") {
			p.Add("/query", "must be the part between ? and #")
		}
	}
	if b.Headers != nil {
		req.Fields = match.AllFields(b.fields())
	}
	if b.Method != "" || b.Path != "" || b.Query != nil || b.Headers != nil || b.Body != nil {
		req.Stage, req.Content = policy.StageHTTP, b.content()
	}
	return req, p.Err()
}

// content returns the messages of the request, or nil if its body is not known.
func (b *explainBody) content() *content.Content {
	var body string
	h := content.Head{Method: b.Method}
	switch {
	case b.Body != nil:
		h.HasBody, body = true, *b.Body
		if h.Method == "" {
			h.Method = http.MethodPost
		}
	case b.Method != http.MethodGet && b.Method != http.MethodHead && b.Method != http.MethodDelete:
		return nil
	}
	if b.Query != nil {
		h.Query = *b.Query
	}
	for name, value := range b.Headers {
		switch match.FoldHeader(name) {
		case "content-type":
			h.Types = append(h.Types, value)
		case "mcp-method":
			h.MCPMethod = append(h.MCPMethod, value)
		case "mcp-name":
			h.MCPName = append(h.MCPName, value)
		}
	}
	if len(h.Types) == 0 {
		h.Types = []string{"application/json"}
	}
	var c *content.Content
	c = c.With(content.MCP, &h, []byte(body))
	if h.Method != http.MethodPost && b.Query == nil { // which may contain an operation
		return c
	}
	return c.With(content.GraphQL, &h, []byte(body))
}

// fields returns the headers as a list, sorted by name.
func (b *explainBody) fields() []match.Field {
	out := make([]match.Field, 0, len(b.Headers))
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		out = append(out, match.Field{Name: name, Value: b.Headers[name]})
	}
	return out
}

func (e *Endpoints) explain(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body explainBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request(box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	d, err := e.Rules.Explain(r.Context(), box.ID, req, body.Query != nil)
	if err != nil {
		return rest.Reply{}, err
	}
	view := decisionView{Verdict: d.Verdict.String(), Reason: d.Reason, Rule: d.Rule, Flaw: d.Flaw, Version: d.Version, Named: box.Policy.Named, DialName: d.DialName, Beaten: d.Beaten}
	if body.Resolve && !req.Name.IsZero() && !req.Addr.IsValid() {
		if err := e.resolve(r.Context(), req, body.Query != nil, &view); err != nil {
			return rest.Reply{}, err
		}
	}
	if d.Unseen.Query {
		view.Unknown = append(view.Unknown, "query")
	}
	if d.Unseen.Headers {
		view.Unknown = append(view.Unknown, "headers")
	}
	if d.Unseen.Body {
		view.Unknown = append(view.Unknown, "body")
	}
	return rest.Reply{Body: view}, nil
}

// resolve looks the name of a request up and adds the decision about each of its addresses to view. If all of them are
// denied, or the list is empty, the request is denied. A name that is only resolved for its addresses is allowed by one of them.
func (e *Endpoints) resolve(ctx context.Context, req policy.Request, knowsQuery bool, view *decisionView) error {
	addrs, looked, err := e.Rules.Resolve(ctx, req.Box, req.Name)
	switch {
	case !looked:
		return err
	case err != nil || len(addrs) == 0:
		view.LookupError = lookupError(err)
		if view.Verdict == policy.Allow.String() {
			view.Verdict, view.Reason, view.Rule, view.DialName, view.Beaten = policy.Deny.String(), name.ReasonUnresolved, "", false, nil
		}
		return nil
	}
	var first, allowed policy.Explanation
	for i, a := range addrs {
		req.Addr = a.Unmap()
		d, err := e.Rules.Explain(ctx, req.Box, req, knowsQuery)
		if err != nil {
			return err
		}
		if i == 0 {
			first = d
		}
		if d.Allowed() && !allowed.Allowed() {
			allowed = d
		}
		if i < maxAddresses {
			view.Addresses = append(view.Addresses, addressView{req.Addr.String(), d.Verdict.String(), d.Reason, d.Rule})
		}
	}
	d := first
	if allowed.Allowed() {
		d = allowed
	}
	if d.Verdict.String() != view.Verdict {
		view.Verdict, view.Reason, view.Rule, view.DialName, view.Beaten = d.Verdict.String(), d.Reason, d.Rule, d.DialName, d.Beaten
	}
	return nil
}

// lookupError is the error of a look-up for people. Errors of resolvers contain the name and the servers, both known to the
// caller.
func lookupError(err error) string {
	var missing interface{ NotFound() bool }
	if err == nil || errors.As(err, &missing) && missing.NotFound() {
		return "it does not exist, or has no address"
	}
	return "the look-up failed: " + strings.ReplaceAll(err.Error(), "\n", "; ")
}
