// Package urls serves the public URLs of boxes.
package urls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Host manages the public URLs. Errors are as in package api.
type Host interface {
	// URLs lists the box's public URLs by port, without credentials.
	URLs(ctx context.Context, id policy.BoxID) ([]api.URL, error)
	// CreateURL creates the public URL of a port. An existing one is replaced, with new credentials, and connections
	// opened with the old ones are cut. A domain that belongs to another URL, or belonged to another key until recently,
	// is an ErrConflict; one that the operator reserves is an ErrForbidden. A domain is pending until the caller has
	// proved control of it.
	CreateURL(ctx context.Context, id policy.BoxID, req api.URLRequest) (api.URL, error)
	// SignURL makes a link that permits certain requests to the public URL of a port.
	SignURL(ctx context.Context, id policy.BoxID, port uint16, req api.LinkRequest) (api.Link, error)
	// DeleteURL removes the public URL of a port and cuts its connections.
	DeleteURL(ctx context.Context, id policy.BoxID, port uint16) error
	// Ports returns the shared ports of a box without their token, or an ErrNotFound.
	Ports(ctx context.Context, id policy.BoxID) (api.Ports, error)
	// SharePorts shares the ports of a box. Earlier settings are replaced, and connections that they let in are cut.
	SharePorts(ctx context.Context, id policy.BoxID, req api.PortsRequest) (api.Ports, error)
	// UnsharePorts ends the sharing and cuts its connections.
	UnsharePorts(ctx context.Context, id policy.BoxID) error
}

// Endpoints serves public URLs.
type Endpoints struct {
	Boxes   rest.Finder
	Host    Host
	History *history.History
	Bodies  strict.Bodies
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "POST", Path: "/v2/box/{id}/preview", ID: "createUrl", Summary: "Create the public URL of a port; credentials are shown only once", Status: 201, Request: reflect.TypeFor[urlBody](), Example: `{"port":3000,"bearer_token":true}`, Response: reflect.TypeFor[urlView](), Handle: e.createURL},
		{Method: "GET", Path: "/v2/box/{id}/preview", ID: "listUrls", Summary: "The public URLs of a box", Response: reflect.TypeFor[urlsView](), Handle: e.listURLs},
		{Method: "POST", Path: "/v2/box/{id}/preview/{port}/sign", ID: "signUrl", Summary: "Sign a link to a public URL: it needs no other credential, and is limited to some paths, methods and a time", Status: 201, Request: reflect.TypeFor[signBody](), Example: `{"expires_in":3600,"path_prefix":"/report","methods":["GET"]}`, Response: reflect.TypeFor[signView](), Handle: e.signURL},
		{Method: "DELETE", Path: "/v2/box/{id}/preview/{port}", ID: "deleteUrl", Summary: "Delete a public URL and cut its connections", Response: reflect.TypeFor[rest.OK](), Handle: e.deleteURL},
		{Method: "PUT", Path: "/v2/box/{id}/config/ports", ID: "sharePorts", Summary: "Share all TCP ports of a box at their host names; the token is shown only once, and replaces the earlier one", Request: reflect.TypeFor[portsBody](), Example: `{"except":[22]}`, Response: reflect.TypeFor[portsView](), Handle: e.sharePorts},
		{Method: "GET", Path: "/v2/box/{id}/config/ports", ID: "getPorts", Summary: "How the ports of a box are shared", Response: reflect.TypeFor[portsView](), Handle: e.getPorts},
		{Method: "DELETE", Path: "/v2/box/{id}/config/ports", ID: "unsharePorts", Summary: "End the sharing of a box's ports and cut its connections", Response: reflect.TypeFor[rest.OK](), Handle: e.unsharePorts},
	}
}

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

// mostHostnames bounds the custom domains of one URL, because each may need a certificate.
const mostHostnames = 16

// longestHostname bounds a domain so that the names of its certificate files fit into file names.
const longestHostname = 240

// parseHostnames returns the canonical forms of the requested custom domains. It rejects names that cannot be a domain of
// the caller: single labels, and invalid host names.
func parseHostnames(list []string) ([]name.Name, error) {
	if len(list) > mostHostnames {
		return nil, problem.Invalid("/hostnames", "must have at most %d entries", mostHostnames)
	}
	var names []name.Name
	var problems problem.List
	for i, text := range list {
		pointer := fmt.Sprintf("/hostnames/%d", i)
		host, err := name.Parse(text)
		switch {
		case err != nil:
			problems.Add(pointer, "%v", err)
		case !strings.Contains(host.String(), ".") || strings.Contains(host.String(), "_"):
			problems.Add(pointer, "%q cannot be the name of a website", host)
		case len(host.String()) > longestHostname:
			problems.Add(pointer, "is longer than %d characters", longestHostname)
		case slices.Contains(names, host):
			problems.Add(pointer, "%q is listed twice", host)
		}
		names = append(names, host)
	}
	return names, problems.Err()
}

// checkOrigin requires an origin as browsers serialize it (RFC 6454, section 6.2): a scheme, a host in lower case, and a
// port unless it is the scheme's default. For other forms, the error includes the correct one if possible.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return errors.New("is not an origin such as https://app.example.org")
	}
	want, err := canonicalOrigin(u)
	if err != nil {
		return err
	}
	if want != origin {
		return fmt.Errorf("is not written as browsers do; use %q", want)
	}
	return nil
}

func canonicalOrigin(u *url.URL) (string, error) {
	host, port := u.Hostname(), u.Port()
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
		if addr.Is6() {
			host = "[" + host + "]"
		}
	} else {
		hostName, err := name.Parse(host)
		if err != nil {
			return "", errors.New("does not have the name of a host")
		}
		host = hostName.String()
	}
	if port == "" && strings.HasSuffix(u.Host, ":") || port == map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		port = ""
	}
	if port != "" {
		host = strings.Trim(host, "[]")
		return u.Scheme + "://" + net.JoinHostPort(host, port), nil
	}
	return u.Scheme + "://" + host, nil
}

// oidcBody lists the accounts that open a URL.
type oidcBody struct {
	Emails  []string `json:"emails,omitempty" doc:"addresses that the provider has verified"`
	Domains []string `json:"domains,omitempty" doc:"domains of such addresses"`
	Groups  []string `json:"groups,omitempty" doc:"names of groups at the provider"`
}

// mostAccounts bounds each of the lists.
const mostAccounts = 256

// accounts returns the accounts in the body, or nil.
func (b *oidcBody) accounts() (*api.URLAccounts, error) {
	if b == nil {
		return nil, nil
	}
	if len(b.Emails)+len(b.Domains)+len(b.Groups) == 0 {
		return nil, problem.Invalid("/oidc", "must list emails, domains or groups; otherwise no account could sign in")
	}
	for key, list := range map[string][]string{"emails": b.Emails, "domains": b.Domains, "groups": b.Groups} {
		if len(list) > mostAccounts {
			return nil, problem.Invalid("/oidc/"+key, "must be %d at most", mostAccounts)
		}
	}
	out := &api.URLAccounts{Groups: b.Groups}
	for i, e := range b.Emails {
		name, domain, ok := strings.Cut(e, "@")
		if !ok || name == "" || domain == "" || strings.ContainsAny(e, " \t\r\n*") || strings.Contains(domain, "@") || strings.ContainsFunc(domain, beyondASCII) {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/emails/%d", i), "must be an address such as ann@example.org")
		}
		out.Emails = append(out.Emails, strings.Map(lower, e))
	}
	for i, d := range b.Domains {
		host, err := name.Parse(d)
		if err != nil {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/domains/%d", i), "must be a domain such as example.org")
		}
		out.Domains = append(out.Domains, host.String())
	}
	for i, g := range b.Groups {
		if g == "" || len(g) > 256 {
			return nil, problem.Invalid(fmt.Sprintf("/oidc/groups/%d", i), "must have 1 to 256 bytes")
		}
	}
	return out, nil
}

func beyondASCII(r rune) bool { return r >= utf8.RuneSelf }

// lower maps only ASCII letters to lower case, as in the comparison of addresses.
func lower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}

func viewAccounts(a *api.URLAccounts) *oidcBody {
	if a == nil {
		return nil
	}
	return &oidcBody{Emails: a.Emails, Domains: a.Domains, Groups: a.Groups}
}

// signBody asks for a signed link.
type signBody struct {
	ExpiresIn  *int64   `json:"expires_in,omitempty" doc:"validity in seconds, up to a year and no longer than that of the URL; absent: an hour"`
	PathPrefix string   `json:"path_prefix,omitempty" doc:"the permitted path, including everything below it; absent: /, all paths"`
	Methods    []string `json:"methods,omitempty" doc:"the permitted methods; absent: GET and HEAD" enum:"GET HEAD POST PUT PATCH DELETE OPTIONS"`
}

// signView is a signed link.
type signView struct {
	URL       string `json:"url"`
	ExpiresAt int64  `json:"expires_at"`
}

// mostOfLink is the maximum validity of a link in seconds: a year.
const mostOfLink = 365 * 24 * 3600

// request converts the body, after validation.
func (b *signBody) request() (api.LinkRequest, error) {
	req := api.LinkRequest{ExpiresIn: time.Hour, PathPrefix: b.PathPrefix, Methods: b.Methods}
	if req.PathPrefix == "" {
		req.PathPrefix = "/"
	}
	if !strings.HasPrefix(req.PathPrefix, "/") || len(req.PathPrefix) > 1024 {
		return req, problem.Invalid("/path_prefix", "must begin with a slash and have 1024 bytes at most")
	}
	if b.ExpiresIn != nil {
		if *b.ExpiresIn < 1 || *b.ExpiresIn > mostOfLink {
			return req, problem.Invalid("/expires_in", "must be between 1 and %d seconds", mostOfLink)
		}
		req.ExpiresIn = time.Duration(*b.ExpiresIn) * time.Second
	}
	if b.Methods == nil {
		req.Methods = []string{"GET", "HEAD"}
	}
	if len(req.Methods) == 0 {
		return req, problem.Invalid("/methods", "must name at least one of %s", strings.Join(api.LinkMethods, ", "))
	}
	for i, m := range req.Methods {
		if !slices.Contains(api.LinkMethods, m) {
			return req, problem.Invalid(fmt.Sprintf("/methods/%d", i), "must be one of %s", strings.Join(api.LinkMethods, ", "))
		}
	}
	return req, nil
}

func (e *Endpoints) signURL(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	port, err := portOf(r)
	if err != nil {
		return rest.Reply{}, err
	}
	var body signBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	req, err := body.request()
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := e.Host.SignURL(r.Context(), box.ID, port, req)
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "link to the public URL of port %d signed, until %s", port, made.ExpiresAt.UTC().Format(time.RFC3339))
	return rest.Reply{Status: http.StatusCreated, Body: signView{URL: made.URL.Reveal(), ExpiresAt: made.ExpiresAt.Unix()}}, nil
}
