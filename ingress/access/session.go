package access

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Key authenticates cookies and links of one public URL. The zero Key authenticates nothing.
type Key [32]byte

// NewKey makes a random key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// Purpose is the use of a key: each purpose has its own key.
type Purpose string

// Purposes of keys.
const (
	Sessions Purpose = "sessions"
	Links    Purpose = "links"
)

// For returns the key for one purpose.
func (k Key) For(purpose Purpose) Key {
	if k == (Key{}) {
		return k
	}
	derived, err := hkdf.Key(sha256.New, k[:], nil, "boxgate public URL: "+string(purpose), len(k))
	if err != nil {
		return Key{}
	}
	return Key(derived)
}

// MAC authenticates a message for an incarnation of a URL.
func (k Key) MAC(url string, message []byte) []byte {
	mac := hmac.New(sha256.New, k[:])
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(url))))
	_, _ = mac.Write([]byte(url))
	_, _ = mac.Write(message)
	return mac.Sum(nil)
}

// Verify reports in constant time whether mac is the MAC of a message.
func (k Key) Verify(url string, message, mac []byte) bool {
	return k != (Key{}) && hmac.Equal(k.MAC(url, message), mac)
}

// ID identifies a session. The zero ID is invalid.
type ID [16]byte

// String returns the ID in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// ParseID parses the result of String.
func ParseID(s string) (id ID, ok bool) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return ID{}, false
	}
	return ID(b), true
}

// Session is a browser's sign-in at one URL.
type Session struct {
	ID      ID
	Account bool // signed in with an account of the identity provider, not with a credential of the URL
	Began   time.Time
	Expires time.Time
}

// New returns a new session.
func New(account bool, now, expires time.Time) Session {
	s := Session{Account: account, Began: now.Truncate(time.Second), Expires: expires}
	_, _ = rand.Read(s.ID[:]) // never fails
	return s
}

const (
	version = 1
	size    = 2 + len(ID{}) + 8 + 8
	// tries is the maximum number of cookies with the name that are checked.
	tries = 4
)

func (s Session) encode() []byte {
	b := make([]byte, 0, size)
	b = append(b, version, 0)
	if s.Account {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(append(b, s.ID[:]...), uint64(s.Began.Unix()))
	return binary.BigEndian.AppendUint64(b, uint64(s.Expires.Unix()))
}

func decode(b []byte) (s Session, ok bool) {
	if len(b) != size || b[0] != version || b[1] > 1 {
		return Session{}, false
	}
	s.Account = b[1] == 1
	s.ID = ID(b[2 : 2+len(ID{})])
	times := b[2+len(ID{}):]
	s.Began = time.Unix(int64(binary.BigEndian.Uint64(times)), 0)
	s.Expires = time.Unix(int64(binary.BigEndian.Uint64(times[8:])), 0)
	return s, true
}

// Cookie is the name of the cookie. Because of the prefix __Host-, browsers accept it only over HTTPS, from the host itself
// and for all paths.
const Cookie = "__Host-boxgate-session"

// Value returns the value of the cookie.
func (k Key) Value(url string, s Session) string {
	b := s.encode()
	return base64.RawURLEncoding.EncodeToString(append(b, k.MAC(url, b)...))
}

// SetCookie returns the value of Set-Cookie that starts a session.
func (k Key) SetCookie(url string, s Session, now time.Time) string {
	age := max(0, int64(s.Expires.Sub(now)/time.Second))
	return Cookie + "=" + k.Value(url, s) + "; Path=/; Max-Age=" + strconv.FormatInt(age, 10) + "; Secure; HttpOnly; SameSite=Lax"
}

// Unset is the value of Set-Cookie that removes the cookie.
const Unset = Cookie + "=; Path=/; Max-Age=0; Secure; HttpOnly; SameSite=Lax"

// Open returns the session of a cookie's value if the key signed it for this URL and it has not expired.
func (k Key) Open(url, value string, now time.Time) (Session, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(value)
	if err != nil || len(b) != size+sha256.Size || !k.Verify(url, b[:size], b[size:]) {
		return Session{}, false
	}
	s, ok := decode(b[:size])
	if !ok || !now.Before(s.Expires) {
		return Session{}, false
	}
	return s, true
}

// Find returns the session of the first valid cookie in the values of Cookie. Only spaces and tabs are trimmed: browsers do
// not recognize the prefix after other kinds of space, so sibling hosts could set such cookies.
func (k Key) Find(url string, lines []string, now time.Time) (Session, bool) {
	tried := 0
	for _, line := range lines {
		if !strings.Contains(line, Cookie) {
			continue
		}
		for pair := range strings.SplitSeq(line, ";") {
			value, ok := strings.CutPrefix(strings.Trim(pair, " \t"), Cookie+"=")
			if !ok {
				continue
			}
			if tried++; tried > tries {
				return Session{}, false
			}
			if s, ok := k.Open(url, value, now); ok {
				return s, true
			}
		}
	}
	return Session{}, false
}

// endedMost is the maximum number of remembered ended sessions. When it is exceeded, all sessions that have begun are
// ended.
const endedMost = 1024

// Ended are the sessions of one URL that were ended early. The zero value is empty. Safe for concurrent use.
type Ended struct {
	mu       sync.RWMutex
	sessions map[ID]time.Time // when they would have expired
	before   time.Time        // sessions that began before are ended
}

// NewEnded returns an Ended with stored sessions.
func NewEnded(sessions map[ID]time.Time, before time.Time) *Ended {
	return &Ended{sessions: maps.Clone(sessions), before: before}
}

// Has reports whether a session was ended.
func (e *Ended) Has(s Session) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	_, ended := e.sessions[s.ID]
	return ended || s.Began.Before(e.before)
}

// Add ends a session.
func (e *Ended) Add(s Session, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sessions == nil {
		e.sessions = map[ID]time.Time{}
	}
	e.sessions[s.ID] = s.Expires
	if len(e.sessions) <= endedMost {
		return
	}
	maps.DeleteFunc(e.sessions, func(_ ID, until time.Time) bool { return !now.Before(until) })
	if len(e.sessions) > endedMost {
		e.sessions, e.before = map[ID]time.Time{}, now.Add(time.Second) // sessions store their start in seconds
	}
}

// All returns the sessions that were ended, and the time before which all were.
func (e *Ended) All() (sessions map[ID]time.Time, before time.Time) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return maps.Clone(e.sessions), e.before
}
