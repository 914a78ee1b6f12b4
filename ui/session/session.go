// Package session signs people in to the dashboard, with an API key or at an identity provider, and keeps their sessions in memory.
//
// The cookie of a session is random, and only its hash is kept. A key of a fleet is in a second cookie, sealed with a key of this process.
// A session with a key has the permissions of that key as it is now: it ends when the key does, when the key changes, or after twelve hours.
// One of an identity provider ends when the ID token expires, if that is earlier.
package session

import (
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/access"
	"boxgate/internal/openid"
	"boxgate/quota"
)

// Cookie is the name of the cookie of a session.
const Cookie = "__Host-boxgate"

// Lifetime is the longest that a session lasts.
const Lifetime = 12 * time.Hour

// Session is what pages may know about the session of a request.
type Session struct {
	Caller  api.Caller
	Person  string    // whom the pages greet: the name of the key, or of the person at the identity provider
	Token   string    // must come with every form, as the field [TokenField]
	Expires time.Time // at the latest
}

// Options configure a [Store]. Find, Still and Hosts are required.
type Options struct {
	// Find returns the caller that a valid key belongs to, as for requests to the API.
	Find access.Finder
	// Still returns the caller that a valid key belongs to, by the SHA-256 of the key.
	Still func(digest [sha256.Size]byte) (api.Caller, bool)
	// Hosts are the names by which browsers may address the dashboard.
	Hosts access.Hosts
	// Peer identifies the user of this host who sent a request; "" if it came from another host. A session that began on this host
	// works for the same user only: browsers show the cookies of a host to the servers of all its ports. nil: users are not told apart.
	Peer func(*http.Request) string
	// Admitted, if not nil, is called for each request with a session, like that of the API.
	Admitted func(*http.Request, quota.Holder) error
	// Issuer signs people in at an identity provider. nil: only API keys.
	Issuer *Issuer
	// Render writes the page of a sign-in. nil: a plain page.
	Render func(w http.ResponseWriter, r *http.Request, status int, p Page)
	// Record, if not nil, records the end of an attempt to sign in, and of signing out, in the audit trail.
	Record func(r *http.Request, route string, caller api.Caller, status int) error
	// Now returns the time. nil: time.Now.
	Now func() time.Time
}

// Store has the sessions. Safe for concurrent use. Create it with [New].
type Store struct {
	options Options
	key     [32]byte // of the tokens of forms, and of sign-ins at the provider
	states  openid.Once
	returns returns
	visits  visits
	signIns signIns
	seal    cipher.AEAD // of the keys that browsers keep

	bodyTime time.Duration // for the form of a request

	mu       sync.Mutex
	sessions map[[sha256.Size]byte]*entry // by the hash of the cookie
	began    uint64
}

// entry is one session. Its fields do not change.
type entry struct {
	hash    [sha256.Size]byte // of the cookie
	caller  api.Caller
	digest  [sha256.Size]byte // of the key
	issued  bool              // by an identity provider; then it has no key
	person  string
	peer    string
	expires time.Time
	number  uint64        // in the order of their beginning
	done    chan struct{} // closed when it has ended
}

// New returns a store without sessions.
func New(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Peer == nil {
		o.Peer = func(*http.Request) string { return "" }
	}
	if o.Render == nil {
		o.Render = renderPlain
	}
	s := &Store{options: o, bodyTime: bodyTime, sessions: map[[sha256.Size]byte]*entry{}}
	_, _ = rand.Read(s.key[:]) // never fails
	s.seal = newSeal()
	return s
}

// Caller returns the session of a request, if it has one that has not ended.
func (s *Store) Caller(r *http.Request) (Session, bool) {
	e := s.entryOf(r)
	if e == nil {
		return Session{}, false
	}
	return Session{Caller: e.caller, Person: e.person, Token: s.token(cookieOf(r, Cookie)), Expires: e.expires}, true
}

// With returns the request with a context in which requests to the API are those of its session. It returns false if it has none.
func (s *Store) With(r *http.Request) (*http.Request, bool) {
	e := s.entryOf(r)
	if e == nil {
		return r, false
	}
	return r.WithContext(access.WithCaller(r.Context(), access.Session{
		Caller: e.caller, Remote: remoteOf(r), Valid: func() bool { return s.lives(e) }, Key: s.fleetKey(r, e),
	})), true
}

// checkInterval is the interval at which [Store.Done] looks whether a session has ended.
const checkInterval = time.Second

// Done returns a channel that is closed when the session of a request has ended, within a second. It is never closed after the
// request itself is done. For a request without a session it is closed already.
func (s *Store) Done(r *http.Request) <-chan struct{} {
	e := s.entryOf(r)
	if e == nil {
		ended := make(chan struct{})
		close(ended)
		return ended
	}
	go func() {
		tick := time.NewTicker(checkInterval)
		defer tick.Stop()
		for s.lives(e) {
			select {
			case <-tick.C:
			case <-e.done:
			case <-r.Context().Done():
				return
			}
		}
	}()
	return e.done
}

// entryOf returns the session of a request, or nil.
func (s *Store) entryOf(r *http.Request) *entry {
	cookie := cookieOf(r, Cookie)
	if cookie == "" {
		return nil
	}
	s.mu.Lock()
	e := s.sessions[sha256.Sum256([]byte(cookie))]
	s.mu.Unlock()
	if e == nil || !s.lives(e) || e.peer != s.options.Peer(r) {
		return nil
	}
	return e
}

// lives reports whether a session goes on, and ends it otherwise: at its time, with its key, or if the key is another's now.
func (s *Store) lives(e *entry) bool {
	select {
	case <-e.done:
		return false
	default:
	}
	if s.options.Now().Before(e.expires) {
		if e.issued {
			return true
		}
		if caller, ok := s.options.Still(e.digest); ok && caller == e.caller {
			return true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(e)
	return false
}

// endLocked ends a session.
func (s *Store) endLocked(e *entry) {
	if s.sessions[e.hash] == e {
		delete(s.sessions, e.hash)
		close(e.done)
	}
}

// begin makes a session and returns its cookie. It returns false if no more sessions are possible.
func (s *Store) begin(e *entry) (cookie string, ok bool) {
	cookie = newSecret()
	e.hash, e.done = sha256.Sum256([]byte(cookie)), make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.makeRoomLocked(e.caller) {
		return "", false
	}
	s.began++
	e.number = s.began
	s.sessions[e.hash] = e
	return cookie, true
}

// Bounds of the number of sessions.
const (
	most         = 1024
	mostOfCaller = 16
	operators    = 128 // of them, only callers with the role admin get these
)

// makeRoomLocked ends sessions so that caller can have one more: its own oldest one if it has as many as it may have, otherwise the
// oldest of the caller with the most. It takes neither the last session of another caller, nor one of an admin for a caller that is
// not one.
func (s *Store) makeRoomLocked(caller api.Caller) bool {
	now := s.options.Now()
	byCaller, oldest, others := map[string]int{}, map[string]*entry{}, 0
	for _, e := range s.sessions {
		if !now.Before(e.expires) {
			s.endLocked(e)
			continue
		}
		byCaller[e.caller.Key]++
		if first := oldest[e.caller.Key]; first == nil || e.number < first.number {
			oldest[e.caller.Key] = e
		}
		if !isOperator(e.caller) {
			others++
		}
	}
	if byCaller[caller.Key] >= mostOfCaller {
		s.endLocked(oldest[caller.Key])
		return true
	}
	if len(s.sessions) < most && (isOperator(caller) || others < most-operators) {
		return true
	}
	var victim *entry
	for key, n := range byCaller {
		if n > 1 && n > byCaller[caller.Key] && (isOperator(caller) || !isOperator(oldest[key].caller)) && (victim == nil || n > byCaller[victim.caller.Key]) {
			victim = oldest[key]
		}
	}
	if victim == nil {
		victim = oldest[caller.Key] // the others have no more than it
	}
	if victim != nil {
		s.endLocked(victim)
	}
	return victim != nil
}

func isOperator(c api.Caller) bool { return c.Holder().Operator }

// newSecret returns a random value for a cookie.
func newSecret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// secretLength is the length of a value of newSecret.
const secretLength = 43

// cookieOf returns the value of a cookie, or "" if the request has not exactly one, or it was not made here.
func cookieOf(r *http.Request, name string) string {
	found := r.CookiesNamed(name)
	if len(found) != 1 || len(found[0].Value) != secretLength {
		return ""
	}
	return found[0].Value
}

// setCookie gives the browser a cookie that it sends to this host only, and only with requests from pages of this host.
func setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	http.SetCookie(w, &http.Cookie{Name: name, Value: value, Path: "/", MaxAge: int(age / time.Second), Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// dropCookie removes a cookie from the browser.
func dropCookie(w http.ResponseWriter, name string) { setCookie(w, name, "", -time.Second) }

// equal compares two texts in a time that does not depend on where they differ.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// remoteOf returns the address of the browser.
func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "unknown"
	}
	return host
}
