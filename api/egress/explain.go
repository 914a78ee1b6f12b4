package egress

import (
	"net/http"
	"net/netip"
	"strings"

	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/policy"
)

// explainBody is a destination to judge.
type explainBody struct {
	Host     string `json:"host,omitempty" doc:"name, if it is known"`
	IP       string `json:"ip,omitempty" doc:"address, if it is known"`
	Port     *int64 `json:"port,omitempty" doc:"absent: 443" min:"1" max:"65535"`
	Protocol string `json:"protocol,omitempty" doc:"absent: tcp" enum:"tcp udp icmp"`
	Method   string `json:"method,omitempty" doc:"of an HTTP request"`
	Path     string `json:"path,omitempty" doc:"of an HTTP request, without the query"`
}

// decisionView is a decision.
type decisionView struct {
	Verdict  string        `json:"verdict" enum:"allow deny"`
	Reason   policy.Reason `json:"reason"`
	Rule     string        `json:"rule,omitempty" doc:"the rule as written that decided"`
	Version  uint64        `json:"version"`
	DialName bool          `json:"dial_name,omitempty" doc:"holds for the name: the gateway dials one of its addresses and judges that one again"`
}

func (b *explainBody) request(box policy.BoxID) (policy.Request, error) {
	var p problem.List
	req := policy.Request{Stage: policy.StageConn, Box: box, Port: 443, Protocol: policy.Protocol(b.Protocol), Method: b.Method, Path: b.Path}
	var err error
	if b.Host == "" && b.IP == "" {
		p.Add("", "host or ip is required")
	}
	if b.Host != "" {
		if req.Name, err = policy.ParseName(b.Host); err != nil {
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
	if b.Method != "" || b.Path != "" {
		req.Stage = policy.StageHTTP
	}
	return req, p.Err()
}

func (e *Endpoints) explain(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Host)
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
	d, err := e.Host.Explain(r.Context(), box.ID, req)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: decisionView{d.Verdict.String(), d.Reason, d.Rule, d.Version, d.DialName}}, nil
}
