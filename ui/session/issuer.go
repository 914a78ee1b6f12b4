package session

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/internal/openid"
	"boxgate/internal/peernet"
)

// Issuer signs people in with their accounts at an identity provider (OpenID Connect). Their groups there give them a role.
type Issuer struct {
	Provider *openid.Provider
	URL      string // the issuer, which the IDs of its people depend on
	Claim    string // the claim with a person's groups, for messages
	// Roles are the roles of groups. People without any of the groups are refused.
	Roles map[string]api.Role
}

// Paths of a sign-in at an identity provider. CallbackPath is registered there.
const (
	StartPath    = oidcPrefix + "start"
	CallbackPath = oidcPrefix + "callback"
)

// IssuedRoles are the roles that groups can give, beginning with the one that may change most. A person in several groups gets the
// first. The other roles are about boxes of a key.
var IssuedRoles = []api.Role{api.RoleAdmin, api.RoleApprover, api.RoleReader, api.RoleAuditor}

// roleOf returns the role of a person in groups, or "".
func (i *Issuer) roleOf(groups []string) api.Role {
	for _, role := range IssuedRoles {
		if slices.ContainsFunc(groups, func(g string) bool { return g != "" && i.Roles[g] == role }) {
			return role
		}
	}
	return ""
}

// callerOf returns a person as a caller. The ID depends on the account alone, so it stays the same if the name changes, and it is
// never that of an API key.
func (i *Issuer) callerOf(id openid.Identity) api.Caller {
	sum := sha256.Sum256([]byte(i.URL + "\x00" + id.Subject))
	return api.Caller{Key: "sso_" + hex.EncodeToString(sum[:8]), Name: personOf(id), Role: i.roleOf(id.Groups)}
}

// personOf returns the name of a person for pages and the audit trail: the address if the provider has verified it, otherwise the ID
// of the account, which is not taken for an address.
func personOf(id openid.Identity) string {
	clean := func(s string) bool {
		return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
	}
	switch {
	case id.Verified && clean(id.Email) && strings.Contains(id.Email, "@"):
		return id.Email
	case clean(id.Subject):
		return "sub:" + id.Subject
	}
	return "sub:" + base64.RawURLEncoding.EncodeToString([]byte(id.Subject[:min(len(id.Subject), 96)]))
}

// flowCookie binds a sign-in at the provider to a browser. It contains the path to go on at, which the provider does not learn.
const flowCookie = "__Host-boxgate-oidc"

// flowTime is how long a sign-in at the provider may take.
const flowTime = 10 * time.Minute

// Bounds of the returns from the provider that are being completed.
const (
	mostReturns   = 16
	mostOfAddress = 4
)

// networksOf returns the texts that an address counts for: an IPv4 address, or the networks that an IPv6 customer can have.
func networksOf(address string) (texts []string) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return []string{address}
	}
	for _, network := range peernet.All(peernet.Network(a)) {
		if network.IsValid() {
			texts = append(texts, network.String())
		}
	}
	return texts
}

// returns counts the returns from the provider that are being completed, by address. The zero value is empty.
type returns struct {
	mu   sync.Mutex
	n    int
	from map[string]int
}

// begin counts one more for each network of an address, and reports false if there are too many. A wider network may have more.
func (c *returns) begin(networks []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n >= mostReturns {
		return false
	}
	for i, network := range networks {
		if c.from[network] >= mostOfAddress*(2+i)/2 {
			return false
		}
	}
	if c.from == nil {
		c.from = map[string]int{}
	}
	c.n++
	for _, network := range networks {
		c.from[network]++
	}
	return true
}

func (c *returns) end(networks []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n--
	for _, network := range networks {
		if c.from[network]--; c.from[network] == 0 {
			delete(c.from, network)
		}
	}
}

// derive returns a value that only the gateway can derive from the cookie of a sign-in.
func (s *Store) derive(purpose, flow string) []byte {
	mac := hmac.New(sha256.New, s.key[:])
	mac.Write([]byte(purpose + "\x00" + flow))
	return mac.Sum(nil)
}

// stateOf returns the state of a sign-in that expires at a time.
func (s *Store) stateOf(flow string, expires int64) string {
	at := binary.BigEndian.AppendUint64(nil, uint64(expires))
	return base64.RawURLEncoding.EncodeToString(append(at, s.derive("state "+string(at), flow)...))
}

// secretsOf returns the nonce and the PKCE verifier of a sign-in.
func (s *Store) secretsOf(flow string) (nonce, verifier string) {
	encode := base64.RawURLEncoding.EncodeToString
	return encode(s.derive("nonce", flow)), encode(s.derive("verifier", flow))
}

// expiryOf returns the expiry of a state made here for the cookie, 0 for any other.
func (s *Store) expiryOf(state, flow string) int64 {
	b, err := base64.RawURLEncoding.Strict().DecodeString(state)
	if err != nil || len(b) != 8+sha256.Size || flow == "" {
		return 0
	}
	if expires := int64(binary.BigEndian.Uint64(b)); equal(state, s.stateOf(flow, expires)) && s.options.Now().Unix() < expires {
		return expires
	}
	return 0
}

// toIssuer sends a browser to the provider.
func (s *Store) toIssuer(w http.ResponseWriter, r *http.Request) {
	next := Local(r.URL.Query().Get("next"))
	if s.hasSession(w, r, next, StartPath) {
		return
	}
	flow, expires := newSecret(), s.options.Now().Add(flowTime).Unix()
	nonce, verifier := s.secretsOf(flow)
	ctx, cancel := context.WithTimeout(r.Context(), bodyTime)
	defer cancel()
	to, err := s.options.Issuer.Provider.AuthURL(ctx, s.stateOf(flow, expires), nonce, verifier)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		s.render(w, r, http.StatusServiceUnavailable, Page{Next: next, Problem: issuerDown})
		return
	}
	value := flow + "." + base64.RawURLEncoding.EncodeToString([]byte(next))
	http.SetCookie(w, &http.Cookie{Name: flowCookie, Value: value, Path: "/", MaxAge: int(flowTime / time.Second), Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// flowOf returns the value of the cookie of a sign-in, and the path to go on at.
func flowOf(r *http.Request) (flow, next string) {
	found := r.CookiesNamed(flowCookie)
	if len(found) != 1 {
		return "", home
	}
	flow, encoded, _ := strings.Cut(found[0].Value, ".")
	path, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(flow) != secretLength {
		return "", home
	}
	return flow, Local(string(path))
}

// Texts of refused sign-ins at a provider.
const (
	issuerDown    = "The identity provider does not answer. Try again, or sign in with an API key."
	issuerRefused = "The identity provider has refused to sign you in."
	issuerBusy    = "Too many people are signing in. Try again in a moment."
	staleFlow     = "This sign-in was begun in another browser, has taken too long, or is complete already. Try again."
)

// errNoRole refuses a person without a role.
var errNoRole = errors.New("no group has a role")

// fromIssuer completes a sign-in at the provider.
func (s *Store) fromIssuer(w http.ResponseWriter, r *http.Request) {
	flow, next := flowOf(r)
	p, status := Page{Next: next}, http.StatusForbidden
	query, err := url.ParseQuery(r.URL.RawQuery)
	expires := s.expiryOf(query.Get("state"), flow)
	networks := networksOf(remoteOf(r))
	switch {
	case err != nil || expires == 0:
		p.Problem = staleFlow
	case query.Get("error") != "" || query.Get("code") == "":
		p.Problem = issuerRefused
	case !s.states.First([]byte(query.Get("state")), expires, s.options.Now().Unix()):
		p.Problem = staleFlow
	case !s.returns.begin(networks):
		p.Problem, status = issuerBusy, http.StatusServiceUnavailable
	default:
		e, err := s.personAt(r, query.Get("code"), flow)
		s.returns.end(networks)
		dropCookie(w, flowCookie)
		if err == nil {
			s.finish(w, r, "GET "+CallbackPath, e, "", p)
			return
		}
		p.Problem = s.issuerProblem(err)
		if errors.Is(err, openid.ErrDown) {
			status = http.StatusServiceUnavailable
		}
		_ = s.record(r, "GET "+CallbackPath, api.Caller{Name: e.person}, status)
	}
	s.render(w, r, status, p)
}

// personAt exchanges a code for the session of a person. With errNoRole, the session has the name of the person and no role.
func (s *Store) personAt(r *http.Request, code, flow string) (*entry, error) {
	nonce, verifier := s.secretsOf(flow)
	id, until, err := s.options.Issuer.Provider.Identify(r.Context(), code, nonce, verifier)
	if err != nil {
		return &entry{}, err
	}
	caller := s.options.Issuer.callerOf(id)
	e := &entry{caller: caller, person: caller.Name, issued: true, peer: s.options.Peer(r), expires: s.options.Now().Add(Lifetime)}
	if until.Before(e.expires) {
		e.expires = until
	}
	switch {
	case caller.Role != "":
		return e, nil
	case len(id.Groups) == 0:
		return e, fmt.Errorf("%w: The identity provider sent no groups of %s: the ID token has no claim %q. The operator of the provider can add it, or admin.oidc.groups_claim can name another", errNoRole, e.person, s.options.Issuer.Claim)
	}
	return e, fmt.Errorf("%w: None of the groups of %s in the claim %q has a role here. The operator of the gateway can add one to admin.oidc.groups", errNoRole, e.person, s.options.Issuer.Claim)
}

// issuerProblem returns the text for a person whose sign-in has failed.
func (s *Store) issuerProblem(err error) string {
	switch {
	case errors.Is(err, errNoRole):
		_, text, _ := strings.Cut(err.Error(), ": ")
		return text + "."
	case errors.Is(err, openid.ErrDown):
		return issuerDown
	}
	return issuerRefused
}

var onward = template.Must(template.New("onward").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={{.}}">
<title>Signing in – boxgate</title>
<p><a href="{{.}}">Continue</a></p>
</html>
`))

// goOn sends a browser to a page of the dashboard from a page of the dashboard. After a redirect from another site, browsers would
// not send the cookie of the session.
func goOn(w http.ResponseWriter, to string) {
	pageHeader(w)
	w.WriteHeader(http.StatusOK)
	_ = onward.Execute(w, to)
}
