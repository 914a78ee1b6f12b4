package urls

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// urlBody asks for a public URL.
type urlBody struct {
	Port        *int64   `json:"port" min:"1" max:"65535" example:"3000"`
	BearerToken bool     `json:"bearer_token,omitempty" doc:"create a bearer token for it"`
	BasicAuth   bool     `json:"basic_auth,omitempty" doc:"create a user name and password for it"`
	Protocol    string   `json:"protocol,omitempty" enum:"auto http1 h2c tcp" doc:"protocol of the application: http1, h2c (HTTP/2 without TLS, as for gRPC servers), tcp (raw TCP inside TLS, passed on byte by byte), or auto, the default, which detects gRPC"`
	Hostnames   []string `json:"hostnames,omitempty" doc:"additional domains for the port, such as app.example.org; at most 16, each for a single URL. Point their DNS records at the gateway. The response lists the TXT records that prove your control of them (pending_hostnames); keys with the role admin need none"`

	ExpiresIn *int64   `json:"expires_in,omitempty" doc:"seconds until the URL is closed and its connections are cut; absent: never"`
	Origins   []string `json:"origins,omitempty" doc:"additional origins whose pages may use the password or sign-in that a browser keeps for the URL, such as https://app.example.org"`

	OIDC *oidcBody `json:"oidc,omitempty" doc:"accounts at the gateway's identity provider that open the URL, in addition to other credentials"`
}

// urlView is a public URL. Token, username and password are only in the response that created them.
type urlView struct {
	URL         string   `json:"url"`
	Port        uint16   `json:"port"`
	BearerToken bool     `json:"bearer_token"`
	BasicAuth   bool     `json:"basic_auth"`
	Protocol    string   `json:"protocol,omitempty"`
	Hostnames   []string `json:"hostnames,omitempty" doc:"additional domains of the URL"`

	PendingHostnames []pendingView `json:"pending_hostnames,omitempty" doc:"domains that work once their TXT records are found"`

	Token     string `json:"token,omitempty"`
	Username  string `json:"username,omitempty"`
	Password  string `json:"password,omitempty"`
	CreatedAt int64  `json:"created_at,omitempty"`

	ExpiresAt int64    `json:"expires_at,omitempty"`
	Origins   []string `json:"origins,omitempty"`

	OIDC *oidcBody `json:"oidc,omitempty"`
}

// pendingView is a custom domain whose owner has not been verified yet.
type pendingView struct {
	Hostname string `json:"hostname"`
	Record   string `json:"record" doc:"name of the TXT record to publish"`
	Value    string `json:"value" doc:"text of the record"`
}

// urlsView is the response of listURLs.
type urlsView struct {
	Previews []urlView `json:"previews"`
}

func viewURL(u api.URL) urlView {
	var pending []pendingView
	for _, p := range u.Pending {
		pending = append(pending, pendingView(p))
	}
	return urlView{
		PendingHostnames: pending,
		URL:              u.URL, Port: u.Port, BearerToken: u.Bearer, BasicAuth: u.Basic, Protocol: u.Protocol, Hostnames: u.Hostnames, CreatedAt: max(u.CreatedAt.Unix(), 0),
		ExpiresAt: max(u.ExpiresAt.Unix(), 0), Origins: u.Origins, OIDC: viewAccounts(u.Accounts),
	}
}

// pendingNames lists the domains of a URL that are still pending.
func pendingNames(u api.URL) []string {
	names := []string{}
	for _, p := range u.Pending {
		names = append(names, p.Hostname)
	}
	return names
}

// mostSeconds is the maximum lifetime of a URL in seconds: ten years.
const mostSeconds = 10 * 365 * 24 * 3600

// mostOrigins bounds the origins of a URL.
const mostOrigins = 32

// request converts the body, after validation.
func (b *urlBody) request() (api.URLRequest, error) {
	if b.Port == nil || *b.Port < 1 || *b.Port > 65535 {
		return api.URLRequest{}, problem.Invalid("/port", "must be between 1 and 65535")
	}
	protocol := cmp.Or(b.Protocol, api.URLProtocols[0])
	if !slices.Contains(api.URLProtocols, protocol) {
		return api.URLRequest{}, problem.Invalid("/protocol", "must be one of %s", strings.Join(api.URLProtocols, ", "))
	}
	if err := b.checkRaw(protocol); err != nil {
		return api.URLRequest{}, err
	}
	hostnames, err := parseHostnames(b.Hostnames)
	if err != nil {
		return api.URLRequest{}, err
	}
	req := api.URLRequest{Port: uint16(*b.Port), Bearer: b.BearerToken, Basic: b.BasicAuth, Protocol: protocol, Hostnames: hostnames, Origins: b.Origins}
	if req.Accounts, err = b.OIDC.accounts(); err != nil {
		return api.URLRequest{}, err
	}
	if b.ExpiresIn != nil {
		if *b.ExpiresIn < 1 || *b.ExpiresIn > mostSeconds {
			return api.URLRequest{}, problem.Invalid("/expires_in", "must be between 1 and %d seconds", mostSeconds)
		}
		req.ExpiresIn = time.Duration(*b.ExpiresIn) * time.Second
	}
	if len(b.Origins) > mostOrigins {
		return api.URLRequest{}, problem.Invalid("/origins", "must be %d at most", mostOrigins)
	}
	for i, o := range b.Origins {
		if err := checkOrigin(o); err != nil {
			return api.URLRequest{}, problem.Invalid(fmt.Sprintf("/origins/%d", i), "%v", err)
		}
	}
	return req, nil
}

func (e *Endpoints) createURL(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	var body urlBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request()
	if err != nil {
		return rest.Reply{}, err
	}
	u, err := e.Host.CreateURL(r.Context(), box.ID, req)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "public URL of port %d made", u.Port)
	view := viewURL(u)
	// The only response with credentials: they are shown once.
	view.Token, view.Username, view.Password = u.Token.Reveal(), u.Username.Reveal(), u.Password.Reveal()
	made := map[string]any{"url": map[string]any{"port": u.Port, "bearer": u.Bearer, "basic": u.Basic, "accounts": u.Accounts != nil, "hostnames": u.Hostnames, "pending_hostnames": pendingNames(u)}}
	return rest.Reply{Status: http.StatusCreated, Body: view, Change: &rest.Change{Box: box.ID, What: made}}, nil
}

// checkRaw rejects fields that only apply to HTTP if the protocol is raw TCP.
func (b *urlBody) checkRaw(protocol string) error {
	const why = "raw TCP has no place for a credential: a URL with protocol tcp is open to everybody who knows its name, and the " +
		"service behind it must ask for a password itself"
	switch {
	case protocol != api.ProtocolTCP:
		return nil
	case b.BearerToken:
		return problem.Invalid("/bearer_token", why)
	case b.BasicAuth:
		return problem.Invalid("/basic_auth", why)
	case b.OIDC != nil:
		return problem.Invalid("/oidc", why)
	case len(b.Origins) > 0:
		return problem.Invalid("/origins", "raw TCP knows no pages, and so no origins")
	}
	return nil
}

func (e *Endpoints) listURLs(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	urls, err := e.Host.URLs(r.Context(), box.ID)
	if err != nil {
		return rest.Reply{}, err
	}
	view := urlsView{Previews: []urlView{}}
	for _, u := range urls {
		view.Previews = append(view.Previews, viewURL(u))
	}
	return rest.Reply{Body: view}, nil
}

func (e *Endpoints) deleteURL(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	port, err := portOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := e.Host.DeleteURL(r.Context(), box.ID, port); err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "public URL of port %d deleted", port)
	reply := rest.Done()
	reply.Change = &rest.Change{Box: box.ID, What: map[string]any{"url_deleted": port}}
	return reply, nil
}

// portOf parses the port in the path.
func portOf(r *http.Request) (uint16, error) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		return 0, api.Errorf(api.ErrNotFound, "%q is not a port", problem.Clip(r.PathValue("port")))
	}
	return uint16(port), nil
}
