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
	"strings"
	"time"

	"boxgate/ingress/access"
)

// Cookie is the name of the cookie that binds the steps of a sign-in to a browser. There is one at the host of the URL and another one
// at the host that the provider knows.
const Cookie = "__Host-boxgate-flow"

const (
	flowTime   = 10 * time.Minute // for the whole sign-in
	ticketTime = time.Minute      // from the provider back to the URL
)

// Ticket is what a step of a sign-in hands over to the next.
type Ticket struct {
	URL  string `json:"u"`           // the incarnation of the public URL
	Host string `json:"h"`           // the host by which the visitor opens it
	Bind []byte `json:"b"`           // hash of the cookie at Host
	Flow []byte `json:"f,omitempty"` // hash of the cookie at the provider's host
	ID   []byte `json:"i,omitempty"` // of a ticket that works once

	Expires int64 `json:"e"`           // when the ticket does
	Until   int64 `json:"t,omitempty"` // when the session will, at the latest
}

// step names what a ticket is for: one is not taken for another.
type step string

const (
	toProvider   step = "start"
	fromProvider step = "state"
	toURL        step = "code"
)

// Desk takes visitors to the provider and back. Safe for concurrent use.
type Desk struct {
	provider *provider
	key      access.Key // of tickets; those of before a restart are worthless
	session  time.Duration

	states, codes once
}

// NewDesk makes a desk. A session lasts as long as the ID token, or for the given time.
func NewDesk(cfg Config, session time.Duration) *Desk {
	return &Desk{provider: newProvider(cfg), key: access.NewKey(), session: session}
}

// Errors of a sign-in.
var (
	ErrTicket  = errors.New("this sign-in was begun elsewhere, has taken too long, or is complete already")
	ErrRefused = errors.New("the identity provider has refused")
	// ErrCode is a code that the provider has not issued, not for this sign-in, or not for the first time.
	ErrCode = errors.New("the identity provider has refused the code")
)

func (d *Desk) seal(s step, t Ticket) string {
	b, err := json.Marshal(t)
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(b, d.key.MAC(string(s), b)...))
}

func (d *Desk) open(s step, text string, now time.Time) (t Ticket, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < sha256.Size {
		return Ticket{}, ErrTicket
	}
	b, mac := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !d.key.Verify(string(s), b, mac) || json.Unmarshal(b, &t) != nil || now.Unix() >= t.Expires {
		return Ticket{}, ErrTicket
	}
	return t, nil
}

// newFlow returns the value of a cookie.
func newFlow() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

func hash(cookie string) []byte {
	sum := sha256.Sum256([]byte(cookie))
	return sum[:]
}

// bound reports whether a ticket was made for the browser with this cookie.
func bound(to []byte, cookie string) bool {
	return cookie != "" && subtle.ConstantTimeCompare(to, hash(cookie)) == 1
}

// nextMost is the longest path to which a sign-in returns.
const nextMost = 1 << 10

// withNext adds the path to return to to a cookie: the tickets pass by the provider, whose business it is not.
func withNext(cookie, next string) string {
	if len(next) > nextMost {
		next = "/"
	}
	return cookie + "." + base64.RawURLEncoding.EncodeToString([]byte(next))
}

// nextOf returns the path of a cookie that a ticket was made for.
func nextOf(cookie string) string {
	_, next, _ := strings.Cut(cookie, ".")
	b, err := base64.RawURLEncoding.DecodeString(next)
	if err != nil {
		return ""
	}
	return string(b)
}

// Begin begins a sign-in at a URL: the browser gets the cookie and goes to the host that the provider knows, with the ticket.
func (d *Desk) Begin(id, host, next string, now time.Time) (ticket, cookie string) {
	cookie = withNext(newFlow(), next)
	return d.seal(toProvider, Ticket{URL: id, Host: host, Bind: hash(cookie), Expires: now.Add(flowTime).Unix()}), cookie
}

// Send sends the browser on to the provider, with another cookie.
func (d *Desk) Send(ctx context.Context, ticket string, now time.Time) (to, cookie string, err error) {
	t, err := d.open(toProvider, ticket, now)
	if err != nil {
		return "", "", err
	}
	cookie = newFlow()
	t.Flow, t.ID = hash(cookie), hash(newFlow())
	nonce, verifier := d.secrets(cookie)
	to, err = d.provider.authURL(ctx, d.seal(fromProvider, t), nonce, verifier)
	return to, cookie, err
}

// secrets returns the nonce and the PKCE verifier of a sign-in, which only the gateway can derive from the cookie.
func (d *Desk) secrets(cookie string) (nonce, verifier string) {
	encode := base64.RawURLEncoding.EncodeToString
	return encode(d.key.MAC("nonce", []byte(cookie))), encode(d.key.MAC("verifier", []byte(cookie)))
}

// Return takes a browser back from the provider. allow tells whether the URL of the ticket lets an identity in. The browser goes on
// to Host with the code. The provider is asked about one code for each sign-in.
func (d *Desk) Return(ctx context.Context, query, cookie string, now time.Time, allow func(Ticket, Identity) bool) (t Ticket, code string, err error) {
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
	if !d.states.first(t.ID, t.Expires, now.Unix()) {
		return t, "", ErrTicket
	}
	nonce, verifier := d.secrets(cookie)
	id, until, err := d.provider.identify(ctx, values.Get("code"), nonce, verifier)
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

// Finish ends a sign-in at its URL: it returns the path to go to, and until when the session lasts. A code works once.
func (d *Desk) Finish(id, code, cookie string, now time.Time) (next string, until time.Time, err error) {
	t, err := d.open(toURL, code, now)
	if err != nil || t.URL != id || !bound(t.Bind, cookie) || !d.codes.first(t.ID, t.Expires, now.Unix()) {
		return "", time.Time{}, ErrTicket
	}
	return nextOf(cookie), time.Unix(t.Until, 0), nil
}

// FlowOf returns the cookie of a sign-in among the values of Cookie; "" if there are none or several. Only blanks are trimmed,
// as in [access.Key.Find].
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

// SetCookie returns the value of Set-Cookie for the cookie of a sign-in; an empty one removes it.
func SetCookie(value string) string {
	age := "600"
	if value == "" {
		age = "0"
	}
	return Cookie + "=" + value + "; Path=/; Max-Age=" + age + "; Secure; HttpOnly; SameSite=Lax"
}
