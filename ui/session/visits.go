package session

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Bounds of the pages and forms that the browsers of one caller have under way. A page is in memory until its browser has received it,
// and a form with its decoded fields until it is answered.
const (
	mostVisits = 64 // pages and streams, of all sessions of the caller
	formVisits = 8  // pages that a form counts as
)

// visits counts the pages and forms under way, by caller. The zero value is empty. Safe for concurrent use.
type visits struct {
	mu   sync.Mutex
	held map[string]int
}

// begin counts a page or a form of a caller, and reports false if it has too many. Each success must be followed by a call of end.
func (v *visits) begin(caller string, n int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held[caller]+n > mostVisits {
		return false
	}
	if v.held == nil {
		v.held = map[string]int{}
	}
	v.held[caller] += n
	return true
}

func (v *visits) end(caller string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held[caller] -= n; v.held[caller] == 0 {
		delete(v.held, caller)
	}
}

// mostSignIns is how often a caller can sign in each minute. Each sign-in is an entry on disk.
const mostSignIns = 300

// signIns counts the sign-ins of the current minute, by caller. The zero value is empty. Safe for concurrent use.
type signIns struct {
	mu     sync.Mutex
	since  time.Time
	counts map[string]int
}

// count counts a sign-in, and reports false if the caller has too many in this minute.
func (c *signIns) count(caller string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil || now.Sub(c.since) >= time.Minute {
		c.counts, c.since = map[string]int{}, now
	}
	c.counts[caller]++
	return c.counts[caller] <= mostSignIns
}

// weightOf returns the number of pages that a request counts as.
func weightOf(r *http.Request) int {
	if isSafe(r) {
		return 1
	}
	return formVisits
}

// timed is a body that has to arrive before a deadline. The deadline stays until all of the body has been read: the server waits for the
// rest of a body that no handler has read.
type timed struct {
	io.ReadCloser
	rc *http.ResponseController
}

// bounded returns the request with a body that has to arrive within a time.
func bounded(w http.ResponseWriter, r *http.Request, within time.Duration) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	body := timed{r.Body, http.NewResponseController(w)}
	_ = body.rc.SetReadDeadline(time.Now().Add(within)) // not supported by recorders of tests
	r = r.WithContext(r.Context())                      // a copy: the server looks at the body of its own
	r.Body = body
	return r
}

// Read implements [io.Reader].
func (b timed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
