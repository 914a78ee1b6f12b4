// Package openid signs people in at an identity provider (OpenID Connect): it discovers the provider, sends browsers there with PKCE,
// state and nonce, and exchanges their codes for verified identities. It is shared by public URLs and the dashboard.
package openid

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"boxgate/policy/name"
)

// Config describes the provider and the gateway's registration there.
type Config struct {
	Issuer   string
	ClientID string
	Secret   func(context.Context) (name.Secret, error) // the client's secret; may be nil
	Scopes   []string                                   // in addition to openid
	Groups   string                                     // the claim with a person's groups
	Redirect string                                     // the gateway's registered address
	// NeedGroups asks the provider for the claims of a person if the ID token has no groups. Without it, only if it has no address.
	NeedGroups bool
}

// Identity is who a person is according to the provider. The zero Identity is anonymous.
type Identity struct {
	Subject  string // unique and permanent at the provider
	Email    string
	Verified bool // the provider has verified that the address is the person's
	Groups   []string
}

// Errors of a sign-in.
var (
	// ErrDown reports that the provider cannot be reached or does not answer.
	ErrDown = errors.New("the identity provider does not answer")
	// ErrCode refuses a code that the provider has not issued, or not for this sign-in, or that was used before.
	ErrCode = errors.New("the identity provider has refused the code")
)

// patience is the timeout of a request to the provider.
const patience = 10 * time.Second

// retry is the pause after the provider could not be reached.
const retry = 2 * time.Second

// Provider discovers the provider's configuration on first use. Safe for concurrent use.
type Provider struct {
	cfg    Config
	client *http.Client

	mu     sync.Mutex
	latest *discovery // nil before the first use
}

// discovery is a request for the provider's configuration, shared by all callers.
type discovery struct {
	done chan struct{} // closed when the result is valid

	known  *oidc.Provider
	err    error
	failed time.Time
}

// stale reports whether the provider must be asked again.
func (d *discovery) stale() bool {
	select {
	case <-d.done:
		return d.err != nil && time.Since(d.failed) >= retry
	default:
		return false
	}
}

// connections is the maximum number of connections to the provider.
const connections = 16

// New returns a provider, and asks it nothing.
func New(cfg Config) *Provider {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxConnsPerHost: connections, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: patience}).DialContext, TLSHandshakeTimeout: patience, ResponseHeaderTimeout: patience, MaxResponseHeaderBytes: 64 << 10,
	}
	return &Provider{cfg: cfg, client: &http.Client{Transport: transport, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// discover returns the provider's configuration. Concurrent callers share one request.
func (p *Provider) discover(ctx context.Context) (*oidc.Provider, error) {
	d := p.discovery()
	select {
	case <-d.done:
		return d.known, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrDown, ctx.Err())
	}
}

func (p *Provider) discovery() *discovery {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil || p.latest.stale() {
		d := &discovery{done: make(chan struct{})}
		p.latest = d
		go p.ask(d)
	}
	return p.latest
}

// ask fetches the provider's configuration within the client's timeout. The library fetches keys with the same context, so
// that must live as long as the gateway.
func (p *Provider) ask(d *discovery) {
	defer close(d.done)
	known, err := oidc.NewProvider(oidc.ClientContext(context.Background(), p.client), p.cfg.Issuer)
	if err != nil {
		d.err, d.failed = fmt.Errorf("%w: %w", ErrDown, err), time.Now()
		return
	}
	d.known = known
}

// oauth2 returns the client configuration of the gateway without its secret.
func (p *Provider) oauth2(known *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.cfg.ClientID, Endpoint: known.Endpoint(), RedirectURL: p.cfg.Redirect, Scopes: append([]string{oidc.ScopeOpenID}, p.cfg.Scopes...),
	}
}

// AuthURL returns the address for the browser's sign-in at the provider.
func (p *Provider) AuthURL(ctx context.Context, state, nonce, verifier string) (string, error) {
	known, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	return p.oauth2(known).AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), nil
}

// exchange exchanges a code for tokens.
func (p *Provider) exchange(ctx context.Context, known *oidc.Provider, code, verifier string) (*oauth2.Token, error) {
	c := p.oauth2(known)
	if p.cfg.Secret != nil {
		secret, err := p.cfg.Secret(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: the client secret: %w", ErrDown, err)
		}
		c.ClientSecret = secret.Reveal()
	}
	token, err := c.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok && refused.Response != nil && refused.Response.StatusCode < 500 {
		return nil, fmt.Errorf("%w: %s", ErrCode, refused.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDown, err)
	}
	return token, nil
}

// Identify exchanges the browser's code for its identity and the expiry of the ID token.
func (p *Provider) Identify(ctx context.Context, code, nonce, verifier string) (id Identity, until time.Time, err error) {
	known, err := p.discover(ctx)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), patience)
	defer cancel()
	token, err := p.exchange(ctx, known, code, verifier)
	if err != nil {
		return Identity{}, time.Time{}, err
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return Identity{}, time.Time{}, errors.New("the identity provider sent no ID token")
	}
	verified, err := known.Verifier(&oidc.Config{ClientID: p.cfg.ClientID}).Verify(ctx, raw)
	if err != nil {
		return Identity{}, time.Time{}, fmt.Errorf("the ID token: %w", err)
	}
	if nonce == "" || subtle.ConstantTimeCompare([]byte(verified.Nonce), []byte(nonce)) != 1 {
		return Identity{}, time.Time{}, errors.New("the ID token is for another sign-in")
	}
	id, err = p.claims(verified)
	if id.Subject = verified.Subject; err == nil && (id.Email == "" || p.cfg.NeedGroups && len(id.Groups) == 0) {
		err = p.userInfo(ctx, known, token, verified.Subject, &id)
	}
	return id, verified.Expiry, err
}

// claims returns the identity in a token.
func (p *Provider) claims(token interface{ Claims(any) error }) (Identity, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return Identity{}, fmt.Errorf("the claims: %w", err)
	}
	var id Identity
	id.Email, _ = claims["email"].(string)
	switch v := claims["email_verified"].(type) {
	case bool:
		id.Verified = v
	case string: // some providers send a string
		id.Verified = v == "true"
	}
	list, _ := claims[p.cfg.Groups].([]any)
	for _, g := range list {
		if name, ok := g.(string); ok {
			id.Groups = append(id.Groups, name)
		}
	}
	return id, nil
}

// userInfo requests the claims of a provider that does not put them into the ID token.
func (p *Provider) userInfo(ctx context.Context, known *oidc.Provider, token *oauth2.Token, subject string, id *Identity) error {
	if known.UserInfoEndpoint() == "" {
		return nil
	}
	info, err := known.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDown, err)
	}
	if info.Subject != subject {
		return errors.New("the identity provider answers about somebody else")
	}
	more, err := p.claims(info)
	if err == nil {
		*id = Identity{Subject: subject, Email: more.Email, Verified: more.Verified, Groups: append(id.Groups, more.Groups...)}
	}
	return err
}
