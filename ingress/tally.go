package ingress

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// talliesMost is how many tallies are kept. They are keyed by addresses, of which there are many: beyond it, one is
// forgotten for each that is new.
const talliesMost = 1 << 16

// tallies has what each network of visitors does at each URL. Safe for concurrent use.
type tallies struct {
	refill   rate.Limit // requests a second
	burst    int
	failures int           // credentials refused in a minute, before none is looked at
	window   time.Duration // a minute

	mu   sync.Mutex
	kept map[pair]*tally
}

// pair is a URL and a network of visitors.
type pair struct {
	url       string
	network   netip.Prefix
	elsewhere bool // what other origins make browsers of the network do
}

// siteShare is how many times as much as one network an IPv6 site may do, which can have 65,536 of them.
const siteShare = 4

// tally is what a network of visitors does at a URL. A nil one counts nothing.
type tally struct {
	site     *tally // of the IPv6 site that the network is a part of, which counts the same; nil without one
	requests *rate.Limiter
	most     int // failures in a window
	window   time.Duration

	mu       sync.Mutex
	failures int       // of the window that ends at until
	until    time.Time // since the first of them
}

// of returns the tally of a network at a URL, or nil for a network that is not known.
func (t *tallies) of(url string, network netip.Prefix) *tally {
	return t.find(pair{url: url, network: network})
}

// elsewhere returns the tally of the credentials that other origins make the browsers of a network send: any web page can bar
// these, and no others.
func (t *tallies) elsewhere(url string, network netip.Prefix) *tally {
	return t.find(pair{url, network, true})
}

func (t *tallies) find(p pair) *tally {
	if !p.network.IsValid() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	made := t.findLocked(p, 1)
	if site := siteOf(p.network); made.site == nil && site.IsValid() {
		made.site = t.findLocked(pair{p.url, site, p.elsewhere}, siteShare)
	}
	return made
}

// findLocked returns the tally of a pair; a new one may have a number of times what a network may.
func (t *tallies) findLocked(p pair, times int) *tally {
	if known := t.kept[p]; known != nil {
		return known
	}
	if t.kept == nil {
		t.kept = map[pair]*tally{}
	}
	for other := range t.kept {
		if len(t.kept) < talliesMost {
			break
		}
		delete(t.kept, other)
	}
	made := &tally{
		requests: rate.NewLimiter(t.refill*rate.Limit(times), t.burst*times), most: t.failures * times, window: t.window,
	}
	t.kept[p] = made
	return made
}

// request counts a request, and reports whether it is one too many.
func (t *tally) request(now time.Time) (excess bool) {
	return t != nil && (!t.requests.AllowN(now, 1) || t.site.request(now))
}

// failed counts a credential that was refused.
func (t *tally) failed(now time.Time) {
	if t == nil {
		return
	}
	t.site.failed(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failedLocked(now)
}

func (t *tally) failedLocked(now time.Time) {
	if !now.Before(t.until) {
		t.failures, t.until = 0, now.Add(t.window)
	}
	t.failures++
}

// attempt counts a credential as refused before it is looked at, so that of many at once no more are looked at than may be
// wrong. It returns what barred does; unless that is 0, nothing is counted. A credential that was right is taken back by right.
func (t *tally) attempt(now time.Time) time.Duration {
	if t == nil {
		return 0
	}
	if wait := t.site.attempt(now); wait > 0 {
		return wait
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if wait := t.barredLocked(now); wait > 0 {
		t.site.right() // it was not looked at
		return wait
	}
	t.failedLocked(now)
	return 0
}

// right takes an attempt back.
func (t *tally) right() {
	if t == nil {
		return
	}
	t.site.right()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = max(0, t.failures-1)
}

// barred returns how long no credential of the network is looked at, since it has had too many refused; 0 if they are.
func (t *tally) barred(now time.Time) time.Duration {
	if t == nil {
		return 0
	}
	site := t.site.barred(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(site, t.barredLocked(now))
}

func (t *tally) barredLocked(now time.Time) time.Duration {
	if t.failures < t.most {
		return 0
	}
	return max(0, t.until.Sub(now))
}
