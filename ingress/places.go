package ingress

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"boxgate/internal/peernet"
)

// places limits how much visitors hold at a time, so that no box or network keeps others out. A box gets half of the places at
// most, and a network of visitors a quarter. A customer with IPv6 has many networks ([peernet]): a /56 gets three eighths, a /48 half.
// Within a /56 or /48 that has all of its places, connections give way to newcomers ([listener.placeLocked]).
// As several boxes and networks could still take everything, the last quarter is for holders of few places: the number they may
// hold sinks with each place taken, and a holder without any always gets one.
type places struct {
	most int

	mu    sync.Mutex
	taken int
	boxes map[string]int
	peers map[netip.Prefix]int
}

// In the last quarter, a network, site or box gets another place only if its places, including the new one, times this factor
// are no more than the remaining places.
const scarceBox = 2

var scarceNetworks = [peernet.Levels]int{16, 8, 4}

// acquire takes a place for a box and a network of visitors, and reports whether there was one. A zero box or network is not
// counted.
func (p *places) acquire(box string, peer netip.Prefix) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	networks := peernet.All(peer)
	left := p.most - p.taken - 1
	if left < 0 || !p.room(p.boxes[box], p.half(), scarceBox, left) {
		return false
	}
	for i, network := range networks {
		if !p.room(p.peers[network], p.mostOf(i), scarceNetworks[i], left) { // the zero network has no places
			return false
		}
	}
	p.takeLocked(box, peer)
	return true
}

// takeLocked counts a place for a box and a network.
func (p *places) takeLocked(box string, peer netip.Prefix) {
	if p.peers == nil {
		p.peers = map[netip.Prefix]int{}
	}
	if p.boxes == nil {
		p.boxes = map[string]int{}
	}
	p.taken++
	if box != "" {
		p.boxes[box]++
	}
	for _, network := range peernet.All(peer) {
		if network.IsValid() {
			p.peers[network]++
		}
	}
}

// room reports whether a holder of has places, limited to most, may take another one that leaves left places free.
func (p *places) room(has, most, scarce, left int) bool {
	return has < most && (has == 0 || left >= p.most/4 || (has+1)*scarce <= left)
}

// name counts a place, which was taken without a box, for a box, and reports whether the box may have it.
func (p *places) name(box string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.room(p.boxes[box], p.half(), scarceBox, p.most-p.taken) {
		return false
	}
	if p.boxes == nil {
		p.boxes = map[string]int{}
	}
	p.boxes[box]++
	return true
}

// half is the limit of a box.
func (p *places) half() int { return max(1, p.most/2) }

// mostOf is the limit of a network of a level: a quarter, three eighths, half.
func (p *places) mostOf(level int) int { return max(1, p.most*(2+level)/8) }

// scarce reports whether less than a quarter of the places is left.
func (p *places) scarce() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most-p.taken < p.most/4
}

// weight returns the larger of a box's and a network's share of their limits, and the network's share. 1 is the limit.
func (p *places) weight(box string, peer netip.Prefix) (most, network float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range peernet.All(peer) {
		network = max(network, float64(p.peers[n])/float64(p.mostOf(i)))
	}
	return max(float64(p.boxes[box])/float64(p.half()), network), network
}

// crowded returns the level of the narrowest network around a network that may take no more places, although the network itself may; 0:
// there is none.
func (p *places) crowded(network netip.Prefix) (level int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.most - p.taken - 1
	for i, n := range peernet.All(network) {
		if n.IsValid() && !p.room(p.peers[n], p.mostOf(i), scarceNetworks[i], max(left, 0)) {
			return i
		}
	}
	return 0
}

// rank orders the places within a crowded network by who gives way first.
type rank struct {
	// more is the difference between the places of the holder's networks and of a newcomer's, the wider first, with the newcomer's place.
	more  [peernet.Levels - 1]int
	use   int // of [held.use]
	since time.Time
}

// rankIn ranks a holder against a newcomer, and reports whether both are in the same network of a level.
func (p *places) rankIn(level int, newcomer, holder netip.Prefix) (r rank, both bool) {
	come, has := peernet.All(newcomer), peernet.All(holder)
	if come[level] != has[level] {
		return r, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range level {
		if come[i] != has[i] {
			r.more[len(r.more)-1-i] = p.peers[has[i]] - p.peers[come[i]] - 1
		}
	}
	return r, true
}

// before reports whether a place gives way before another.
func (r rank) before(other rank) bool {
	return cmp.Or(slices.Compare(other.more[:], r.more[:]), cmp.Compare(r.use, other.use), r.since.Compare(other.since)) < 0
}

// yieldsToNewcomer reports whether a place gives way to a newcomer: unless its networks have fewer places than the newcomer's would have.
func (r rank) yieldsToNewcomer() bool {
	return slices.Compare(r.more[:], make([]int, len(r.more))) >= 0
}

// exchange counts the place of a box and a network for another network.
func (p *places) exchange(box string, from, to netip.Prefix) {
	p.release(box, from)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.takeLocked("", to)
}

// release returns a place.
func (p *places) release(box string, peer netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.boxes[box]--; p.boxes[box] <= 0 {
		delete(p.boxes, box)
	}
	for _, network := range peernet.All(peer) {
		if p.peers[network]--; p.peers[network] <= 0 {
			delete(p.peers, network)
		}
	}
}

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

// shares are the limits of the networks around a network, in limits of that network. A /48 has up to 65,536 networks.
var shares = [peernet.Levels]int{1, 2, 4}

// tally counts the requests and wrong credentials of a network at a URL. A nil tally has no limits.
type tally struct {
	site     *tally // of the network around it, which counts the same events; nil without one
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
	var made *tally
	networks := peernet.All(p.network)
	for i, network := range slices.Backward(networks[:]) {
		if !network.IsValid() {
			continue
		}
		one := t.findLocked(pair{p.url, network, p.elsewhere}, shares[i])
		if one.site == nil && made != nil { // new, and not used yet
			one.site = made
		}
		made = one
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

// Use is the use of one bounded resource.
type Use struct{ Taken, Most int }

// Uses returns the current use of the resources that all visitors share, by name: forwarded requests, forwarded requests of
// boxes, requests to applications that speak HTTP/2, code exchanges at the identity provider, and idle connections to boxes.
func (g *Ingress) Uses() map[string]Use {
	return map[string]Use{
		"url_requests": g.places.use(), "url_requests_of_boxes": g.inside.use(), "url_http2_requests": g.http2Places.use(),
		"url_sign_ins": g.exchanges.use(), "url_idle_upstreams": g.upstreams.use(),
	}
}

func (p *places) use() Use {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Use{p.taken, p.most}
}

func (p *upstreams) use() Use { return Use{p.Stats().Idle, p.Idle} }
