package urls

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/internal/lazyregexp"
)

// portsBody shares the ports of a box.
type portsBody struct {
	Access     string  `json:"access,omitempty" enum:"token public" doc:"token, the default: visitors need the token of the response; public: they need none, if ingress.public_ports permits it"`
	KeepToken  bool    `json:"keep_token,omitempty" doc:"keep the token that the ports have, instead of making a new one"`
	Token      string  `json:"token,omitempty" doc:"a new token of your own instead of a random one, for a client that keeps no tokens: 32 to 256 letters, digits and . _ ~ + / - characters, as hard to guess as a random one"`
	Except     []int64 `json:"except,omitempty" doc:"ports that are not shared; at most 64"`
	Host       string  `json:"host,omitempty" doc:"the Host field that applications get, such as localhost:${PORT}; absent: the visitor's" example:"localhost:${PORT}"`
	HTTPSPorts []int64 `json:"https_ports,omitempty" doc:"ports whose applications speak HTTPS, with any certificate; at most 64"`
}

// portsView are the shared ports of a box. The token is only in the response that made it.
type portsView struct {
	URL          string   `json:"url" doc:"replace {port} by the port"`
	Access       string   `json:"access" enum:"token public"`
	Token        string   `json:"token,omitempty"`
	Fingerprint  string   `json:"token_fingerprint,omitempty" doc:"tells the token from others: the first 8 hexadecimal digits of the SHA-256 of the text boxgate token fingerprint, a zero byte and the token"`
	TokenHeaders []string `json:"token_headers" doc:"fields in which a visitor may send the token"`
	Except       []uint16 `json:"except,omitempty"`
	Host         string   `json:"host,omitempty"`
	HTTPSPorts   []uint16 `json:"https_ports,omitempty"`
	SharedAt     int64    `json:"shared_at,omitempty"`
}

// The values of access.
const (
	accessToken  = "token"
	accessPublic = "public"
)

func viewPorts(p api.Ports) portsView {
	access := accessToken
	if p.Public {
		access = accessPublic
	}
	headers := []string{}
	if !p.Public {
		headers = append([]string{"Authorization"}, p.TokenHeaders...)
	}
	return portsView{
		URL: p.URL, Access: access, Fingerprint: p.Fingerprint, TokenHeaders: headers, Except: p.Except, Host: p.Host, HTTPSPorts: p.HTTPS, SharedAt: max(p.SharedAt.Unix(), 0),
	}
}

// mostPorts bounds the lists of ports, and longestHost the Host field.
const (
	mostPorts   = 64
	longestHost = 253
)

// ownToken matches tokens that clients may choose (RFC 6750, section 2.1).
var ownToken = lazyregexp.New(`^[A-Za-z0-9._~+/-]{32,256}$`)

// request converts the body, after validation.
func (b *portsBody) request() (api.PortsRequest, error) {
	var problems problem.List
	switch b.Access {
	case "", accessToken, accessPublic:
	default:
		problems.Add("/access", "must be %s or %s", accessToken, accessPublic)
	}
	if b.Access == accessPublic && b.KeepToken {
		problems.Add("/keep_token", "public ports have no token")
	}
	if b.Token != "" && (b.KeepToken || b.Access == accessPublic) {
		problems.Add("/token", "goes with neither keep_token nor public ports")
	}
	if b.Token != "" && !ownToken.MatchString(b.Token) {
		problems.Add("/token", "must be 32 to 256 letters, digits and . _ ~ + / - characters")
	}
	req := api.PortsRequest{Public: b.Access == accessPublic, KeepToken: b.KeepToken, Token: b.Token, Host: b.Host}
	req.Except = portList(&problems, "/except", b.Except)
	req.HTTPS = portList(&problems, "/https_ports", b.HTTPSPorts)
	host := strings.ReplaceAll(b.Host, "${PORT}", "1")
	if host != "" && (len(b.Host) > longestHost || !httpguts.ValidHostHeader(host) || strings.ContainsAny(host, "${}/@?#%, ")) {
		problems.Add("/host", "must be a host with an optional port, such as localhost:${PORT}")
	}
	return req, problems.Err()
}

// portList validates a list of ports, and returns it sorted, without duplicates.
func portList(problems *problem.List, pointer string, list []int64) []uint16 {
	if len(list) > mostPorts {
		problems.Add(pointer, "must have at most %d entries", mostPorts)
		return nil
	}
	var ports []uint16
	for _, n := range list {
		if n < 1 || n > 65535 {
			problems.Add(pointer, "%d is not a port", n)
			continue
		}
		ports = append(ports, uint16(n))
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func (e *Endpoints) sharePorts(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body portsBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request()
	if err != nil {
		return rest.Reply{}, err
	}
	ports, err := e.Host.SharePorts(r.Context(), box.ID, req)
	if err != nil {
		return rest.Reply{}, err
	}
	view := viewPorts(ports)
	made := map[string]any{"ports": map[string]any{"access": view.Access, "new_token": ports.Token.Reveal() != "", "except": view.Except, "host": view.Host, "https_ports": view.HTTPSPorts}}
	e.History.Log(box.ID, "info", "user", "all ports shared, access: %s", view.Access)
	view.Token = ports.Token.Reveal() // the only response with it
	return rest.Reply{Body: view, Change: &rest.Change{Box: box.ID, What: made}}, nil
}

func (e *Endpoints) getPorts(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	ports, err := e.Host.Ports(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewPorts(ports)}, nil
}

func (e *Endpoints) unsharePorts(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.UnsharePorts(r.Context(), box.ID); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "ports no longer shared")
	reply := rest.Done()
	reply.Change = &rest.Change{Box: box.ID, What: map[string]any{"ports_unshared": true}}
	return reply, nil
}
