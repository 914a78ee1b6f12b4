package ingress

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// talliesMost is the limit of tallies. Visitors choose the keys, as IPv6 addresses are plenty: beyond the limit, each new
// tally replaces a random one.
const talliesMost = 1 << 16

// tallies counts the requests and wrong credentials of each network of visitors at each URL. Safe for concurrent use.
type tallies struct {
	refill   rate.Limit // requests a second
	burst    int
	failures int           // wrong credentials in a window until further ones are not checked
	window   time.Duration // a minute

	mu   sync.Mutex
	kept map[pair]*tally
}

// pair is a URL and a network of visitors.
type pair struct {
	url       string
	network   netip.Prefix
	elsewhere bool // counts only requests that other origins make browsers send
}

// siteShare is the limit of an IPv6 site, in limits of one network. A site has up to 65,536 networks.
const siteShare = 4

// tally counts the requests and wrong credentials of a network at a URL. A nil tally has no limits.
type tally struct {
	site     *tally // of the IPv6 site of the network, which counts the same events; nil without one
	requests *rate.Limiter
	most     int // failures in a window
	window   time.Duration

	mu       sync.Mutex
	failures int       // in the window that ends at until
	until    time.Time // the window begins with its first failure
}

// of returns the tally of a network at a URL, or nil if the network is unknown.
func (t *tallies) of(url string, network netip.Prefix) *tally {
	return t.find(pair{url: url, network: network})
}

// elsewhere returns the tally of the credentials that other origins make a network's browsers send. Any web page can exhaust
// this tally, but no other.
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

// findLocked returns the tally of a pair. A new tally has times the limits of a network.
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

// request counts a request, and reports whether it exceeds the rate.
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

// attempt counts a credential as wrong before it is checked, so that concurrent attempts do not exceed the limit. If the
// network is barred, it counts no attempt and returns the wait like barred. right takes the attempt back if the credential was
// right.
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
		t.site.right() // the credential is not checked
		return wait
	}
	t.failedLocked(now)
	return 0
}

// right takes back an attempt.
func (t *tally) right() {
	if t == nil {
		return
	}
	t.site.right()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = max(0, t.failures-1)
}

// barred returns how long the network's credentials are not checked because too many were wrong; 0 if they are checked.
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
