package account

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"boxgate/ingress/access"
	"boxgate/internal/openid"
)

// Cookie is the name of the cookie that binds the steps of a sign-in to a browser. There is one on the host of the URL and
// another on the host registered with the provider.
const Cookie = "__Host-boxgate-flow"

const (
	flowTime   = 10 * time.Minute // for the whole sign-in
	ticketTime = time.Minute      // from the provider back to the URL
)

// Ticket is the state that one step of a sign-in passes to the next.
type Ticket struct {
	URL  string `json:"u"`           // the incarnation of the public URL
	Host string `json:"h"`           // the host that the visitor opened
	Bind []byte `json:"b"`           // hash of the cookie at Host
	Flow []byte `json:"f,omitempty"` // hash of the cookie at the provider's host
	ID   []byte `json:"i,omitempty"` // of a ticket that works once

	Expires int64 `json:"e"`           // expiry of the ticket
	Until   int64 `json:"t,omitempty"` // latest expiry of the session
}

// step is the purpose of a ticket: a ticket for one step is invalid for others.
type step string

const (
	toProvider   step = "start"
	fromProvider step = "state"
	toURL        step = "code"
)

// Desk sends visitors to the provider and back. Safe for concurrent use.
type Desk struct {
	provider *openid.Provider
	mark     string     // begins each ticket: the host and a dot, or nothing
	key      access.Key // of tickets; a restart invalidates them
	session  time.Duration

	states, codes openid.Once
}

// NewDesk returns a desk. A session lasts as long as the ID token, or for the given time. In a fleet, host is the ID of this host: each ticket
// names it, since no other host can open the ticket (see [HostOf]). Otherwise it is empty.
func NewDesk(cfg openid.Config, session time.Duration, host string) *Desk {
	d := &Desk{provider: openid.New(cfg), key: access.NewKey(), session: session}
	if host != "" {
		d.mark = host + "."
	}
	return d
}

// HostOf returns the ID of the host of a fleet that a ticket names, or "". Anybody can write such a ticket.
func HostOf(ticket string) string {
	host, _, marked := strings.Cut(ticket, ".") // no ticket has another dot
	if !marked {
		return ""
	}
	return host
}

// Errors of a sign-in.
var (
	ErrTicket  = errors.New("this sign-in was begun elsewhere, has taken too long, or is complete already")
	ErrRefused = errors.New("the identity provider has refused")
)

func (d *Desk) seal(s step, t Ticket) string {
	b, err := json.Marshal(t)
	if err != nil {
		return ""
	}
	return d.mark + base64.RawURLEncoding.EncodeToString(append(b, d.key.MAC(string(s), b)...))
}

func (d *Desk) open(s step, text string, now time.Time) (t Ticket, err error) {
	text, marked := strings.CutPrefix(text, d.mark)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !marked || err != nil || len(b) < sha256.Size {
		return Ticket{}, ErrTicket
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !d.key.Verify(string(s), b, mac) || json.Unmarshal(b, &t) != nil || now.Unix() >= t.Expires {
		return Ticket{}, ErrTicket
	}
	return t, nil
}

// newFlow returns a random value for a cookie.
func newFlow() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

func hash(cookie string) []byte {
	sum := sha256.Sum256([]byte(cookie))
	return sum[:]
}

// bound reports whether a ticket was issued for the browser with this cookie.
func bound(to []byte, cookie string) bool {
	return cookie != "" && subtle.ConstantTimeCompare(to, hash(cookie)) == 1
}

// nextMost is the longest path to return to after a sign-in.
const nextMost = 1 << 10

// withNext adds the return path to a cookie instead of the tickets, which the provider sees.
func withNext(cookie, next string) string {
	if len(next) > nextMost {
		next = "/"
	}
	return cookie + "." + base64.RawURLEncoding.EncodeToString([]byte(next))
}

// nextOf returns the return path in a cookie.
func nextOf(cookie string) string {
	_, next, _ := strings.Cut(cookie, ".")
	b, err := base64.RawURLEncoding.DecodeString(next)
	if err != nil {
		return ""
	}
	return string(b)
}

// Begin starts a sign-in at a URL: the browser gets the cookie and is redirected, with the ticket, to the host registered
// with the provider.
func (d *Desk) Begin(id, host, next string, now time.Time) (ticket, cookie string) {
	cookie = withNext(newFlow(), next)
	return d.seal(toProvider, Ticket{URL: id, Host: host, Bind: hash(cookie), Expires: now.Add(flowTime).Unix()}), cookie
}

// Send redirects the browser to the provider, with another cookie.
func (d *Desk) Send(ctx context.Context, ticket string, now time.Time) (to, cookie string, err error) {
	t, err := d.open(toProvider, ticket, now)
	if err != nil {
		return "", "", err
	}
	cookie = newFlow()
	t.Flow, t.ID = hash(cookie), hash(newFlow())
	nonce, verifier := d.secrets(cookie)
	to, err = d.provider.AuthURL(ctx, d.seal(fromProvider, t), nonce, verifier)
	return to, cookie, err
}

// secrets returns the nonce and the PKCE verifier of a sign-in. Only the gateway can derive them from the cookie.
func (d *Desk) secrets(cookie string) (nonce, verifier string) {
	encode := base64.RawURLEncoding.EncodeToString
	return encode(d.key.MAC("nonce", []byte(cookie))), encode(d.key.MAC("verifier", []byte(cookie)))
}

// Return handles the browser's return from the provider. allow reports whether the URL of the ticket admits an identity.
// The browser continues at Host with the code. Only one code per sign-in is sent to the provider.
func (d *Desk) Return(ctx context.Context, query, cookie string, now time.Time, allow func(Ticket, openid.Identity) bool) (t Ticket, code string, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return Ticket{}, "", ErrTicket
	}
	t, err = d.open(fromProvider, values.Get("state"), now)
	if err != nil || !bound(t.Flow, cookie) {
		return Ticket{}, "", ErrTicket
	}
	if values.Get("error") != "" || values.Get("code") == "" {
		return t, "", ErrRefused
	}
	if !d.states.First(t.ID, t.Expires, now.Unix()) {
		return t, "", ErrTicket
	}
	nonce, verifier := d.secrets(cookie)
	id, until, err := d.provider.Identify(ctx, values.Get("code"), nonce, verifier)
	if err != nil {
		return t, "", err
	}
	if !allow(t, id) {
		return t, "", ErrRefused
	}
	if d.session > 0 {
		until = now.Add(d.session)
	}
	t.Flow, t.ID, t.Until, t.Expires = nil, hash(newFlow()), until.Unix(), now.Add(ticketTime).Unix()
	return t, d.seal(toURL, t), nil
}

// Finish completes a sign-in at its URL. It returns the path to go to and the session's expiry. A code works once.
func (d *Desk) Finish(id, code, cookie string, now time.Time) (next string, until time.Time, err error) {
	t, err := d.open(toURL, code, now)
	if err != nil || t.URL != id || !bound(t.Bind, cookie) || !d.codes.First(t.ID, t.Expires, now.Unix()) {
		return "", time.Time{}, ErrTicket
	}
	return nextOf(cookie), time.Unix(t.Until, 0), nil
}

// FlowOf returns the sign-in cookie in the values of Cookie, or "" if there is none or several. Only spaces and tabs are
// trimmed, as in [access.Key.Find].
func FlowOf(lines []string) (value string) {
	for _, line := range lines {
		for pair := range strings.SplitSeq(line, ";") {
			if v, ok := strings.CutPrefix(strings.Trim(pair, " \t"), Cookie+"="); ok {
				if value != "" {
					return ""
				}
				value = v
			}
		}
	}
	return value
}

// SetCookie returns the value of Set-Cookie for a sign-in cookie; an empty value removes it.
func SetCookie(value string) string {
	age := "600"
	if value == "" {
		age = "0"
	}
	return Cookie + "=" + value + "; Path=/; Max-Age=" + age + "; Secure; HttpOnly; SameSite=Lax"
}

// Rules list the accounts that a public URL admits. The zero Rules admit no one.
type Rules struct {
	Emails  []string // in lower case
	Domains []string // of e-mail addresses, in lower case
	Groups  []string
}

// Allow reports whether the rules admit an identity. Unverified addresses do not count.
func (r *Rules) Allow(id openid.Identity) bool {
	if r == nil {
		return false
	}
	if id.Verified {
		email := fold(id.Email)
		name, domain, ok := strings.Cut(email, "@")
		if ok && isASCII(domain) && name != "" && domain != "" && !strings.Contains(domain, "@") && (slices.Contains(r.Emails, email) || slices.Contains(r.Domains, domain)) {
			return true
		}
	}
	return id.Verified && slices.ContainsFunc(id.Groups, func(g string) bool { return g != "" && slices.Contains(r.Groups, g) })
}

// fold returns an address in lower case, in ASCII only: some other letters (K, the Kelvin sign) have ASCII letters as their
// lower case, which would make two addresses equal.
func fold(address string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, address)
}

// isASCII reports whether a domain is in its DNS form.
func isASCII(domain string) bool {
	return !strings.ContainsFunc(domain, func(r rune) bool { return r >= utf8.RuneSelf })
}
