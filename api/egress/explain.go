package egress

import (
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
	Unknown  []string    `json:"unknown,omitempty" doc:"query, headers, body: rules for the host depend on them and they were not given, so the decision may differ for actual requests"`
}

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
