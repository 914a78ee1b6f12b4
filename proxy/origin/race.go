package origin

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/problem"
	"boxgate/proxy/route"
)

// This file tries the addresses of a name as the box's own client would (RFC 8305): the client's connection to the gateway
// has already succeeded, so it does not try other addresses itself.

const (
	// Stagger is the time after which the next address is tried in parallel (RFC 8305, 5).
	Stagger = 250 * time.Millisecond
	// mostAddresses limits the addresses tried for one connection.
	mostAddresses = 16
	// mostExtra limits the extra attempts of a box at the same time.
	mostExtra = 64
)

// extras counts the attempts of boxes that run in parallel to another of the same connection. Limits on connections assume
// one socket to a server, and a name under the box's control may have any number of addresses that never answer. Safe for
// concurrent use.
type extras struct {
	most int // of all boxes

	mu    sync.Mutex
	all   int
	boxes map[policy.BoxID]int
}

// acquire counts one more attempt of a box and returns true, or returns false at the limit. The caller must call leave.
func (e *extras) acquire(box policy.BoxID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all >= e.most || e.boxes[box] >= min(mostExtra, max(1, e.most/4)) {
		return false
	}
	if e.boxes == nil {
		e.boxes = map[policy.BoxID]int{}
	}
	e.all++
	e.boxes[box]++
	return true
}

func (e *extras) release(box policy.BoxID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.boxes[box]--; e.boxes[box] == 0 {
		delete(e.boxes, box)
	}
}

// Extra returns the number of extra attempts of all boxes.
func (p *Origins) Extra() int {
	p.extras.mu.Lock()
	defer p.extras.mu.Unlock()
	return p.extras.all
}

// race is the state of connecting to one of several addresses.
type race struct {
	p   *Origins
	ctx context.Context
	box *policy.Box

	d       Target
	alone   func() bool  // reports whether only the race's own attempts are running; nil: always
	addrs   []netip.Addr // not yet tried
	others  netip.Addr   // if valid, look up the rest of the name's addresses; this one was already tried
	results chan attempt
	running int   // number of attempts, including the lookup of other addresses
	failed  error // error of the attempts
}

// attempt is the result of an attempt, or of the lookup of other addresses.
type attempt struct {
	conn     net.Conn
	err      error
	found    []netip.Addr
	panicked any
}

// DialFirst connects box to the first of the candidates that accepts; after Stagger, the next is tried in parallel. If the
// only candidate is the address that the box has chosen for a name, the other addresses of the name follow, each judged
// like the first. It is [Origins.Dial] after [Origins.Candidates].
func (p *Origins) DialFirst(ctx context.Context, box *policy.Box, d Target, addrs []netip.Addr) (net.Conn, error) {
	r := &race{p: p, box: box, d: d, addrs: addrs}
	if p.hasOthers(box, d, addrs) {
		r.others = addrs[0]
	}
	if len(addrs) == 1 && !r.others.IsValid() {
		conn, err := p.DialAddr(ctx, box, d, addrs[0], false)
		if err != nil {
			err = r.verdict(err)
		}
		return conn, err
	}
	return r.run(ctx)
}

// DialOthers connects box to one of the other addresses of d's name, apart from the one that the box has chosen and the
// caller tries. alone reports whether that attempt has ended; it is called in the caller's goroutine. An error means that
// there are no other addresses, or that all refuse.
func (p *Origins) DialOthers(ctx context.Context, box *policy.Box, d Target, tried netip.Addr, alone func() bool) (net.Conn, error) {
	if !p.hasOthers(box, d, []netip.Addr{tried}) {
		return nil, errNoOthers
	}
	return (&race{p: p, box: box, d: d, alone: alone, others: tried}).run(ctx)
}

var errNoOthers = errors.New("there is no other address")

// hasOthers reports whether the name of d may have other addresses than the only candidate, and the box could choose
// between them: the candidate was granted for the name.
func (p *Origins) hasOthers(box *policy.Box, d Target, addrs []netip.Addr) bool {
	return len(addrs) == 1 && !d.There && !d.literal && !d.name.IsZero() && addrs[0].IsValid() && addrs[0] == d.Asked.Addr.Unmap() &&
		p.cfg.Resolver.Granted(box.ID, d.name, addrs[0]) && (d.ByName || resolvable(box, d.name))
}

// resolvable reports whether the current policy allows a lookup of the name at the upstream DNS servers. The box may have
// resolved it under an earlier policy.
func resolvable(box *policy.Box, n name.Name) bool {
	c := box.Policy.Load()
	return c.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n}).Allowed() || c.ResolvesOthers(n)
}

// isOfAll reports whether an address belongs to every name that the connection may be for. If the client has not sent its
// host, these are the names granted for the address that it dialled. Anyone can publish a name with that address and one
// under his own control.
func (p *Origins) isOfAll(box *policy.Box, d Target, a netip.Addr) bool {
	stranger := func(n name.Name) bool { return !p.cfg.Resolver.Granted(box.ID, n, a) }
	return d.Action == policy.Broker || !slices.ContainsFunc(d.Known.Told, stranger) // a broker's server proves its name
}

// run tries the addresses until one accepts or all have failed.
func (r *race) run(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	r.ctx, r.results = ctx, make(chan attempt)
	defer cancel()
	defer func() { go drain(r.results, r.running) }()
	stagger := Stagger
	if r.d.Upstream != nil {
		stagger = r.p.cfg.AddressTimeout // a proxy answers only after it has reached the server
	}
	next := time.NewTimer(stagger)
	defer next.Stop()
	for r.start(); r.running > 0 || len(r.addrs) > 0 && ctx.Err() == nil; {
		var ended <-chan struct{}
		if r.running == 0 { // no extra attempt is available yet
			ended = ctx.Done()
		}
		select {
		case <-ended:
		case <-next.C:
			r.start()
		case a := <-r.results:
			r.running--
			switch {
			case a.panicked != nil:
				panic(a.panicked) // it closes the connection that needs it
			case a.conn != nil:
				return a.conn, nil
			case a.err != nil:
				r.failed = errors.Join(r.failed, a.err)
			}
			r.addrs = append(r.addrs, a.found...)
			if ctx.Err() == nil {
				r.start()
			}
		}
		next.Reset(stagger)
	}
	return nil, r.verdict(r.failed)
}

// start begins the next attempt, or the lookup of other addresses after all known ones. At the limit of extra attempts it
// waits for the running one.
func (r *race) start() {
	switch {
	case len(r.addrs) > 0:
		extra := r.running > 0 || r.alone != nil && !r.alone()
		if extra && !r.p.extras.acquire(r.box.ID) {
			return
		}
		a := r.addrs[0]
		r.addrs = r.addrs[1:]
		d, more := r.d, len(r.addrs) > 0
		r.begin(func() (end attempt) {
			if extra {
				defer r.p.extras.release(r.box.ID)
			}
			end.conn, end.err = r.p.DialAddr(r.ctx, r.box, d, a, more)
			return end
		})
	case r.others.IsValid():
		tried := r.others
		r.others = netip.Addr{}
		r.d.ByName = true // the addresses found belong to the name
		d := r.d
		r.begin(func() attempt { return attempt{found: r.p.others(r.ctx, r.box, d, tried)} })
	}
}

// begin runs a part of the race in a goroutine. It passes a panic on, which would end the gateway there.
func (r *race) begin(part func() attempt) {
	r.running++
	go func() {
		var end attempt
		defer func() {
			if v := recover(); v != nil {
				end = attempt{panicked: v}
			}
			r.results <- end
		}()
		end = part()
	}()
}

// drain closes connections that succeed after another.
func drain(results <-chan attempt, running int) {
	for range running {
		if a := <-results; a.conn != nil {
			socket.Abort(a.conn)
		}
	}
}

// others returns the addresses of d's name without the one that was tried, alternating families and beginning with the
// other one. The connection may go to each, and each was judged.
func (p *Origins) others(ctx context.Context, box *policy.Box, d Target, tried netip.Addr) (good []netip.Addr) {
	addrs, err := p.cfg.Resolver.Lookup(ctx, box, d.name)
	if err != nil {
		return nil
	}
	for _, a := range route.Interleave(addrs, tried.Is4()) {
		if a != tried && len(good) < mostAddresses && p.isOfAll(box, d, a) && p.judgeDial(ctx, box, d, a) == nil {
			good = append(good, a)
		}
	}
	return good
}

// verdict returns the error after all attempts have failed.
func (r *race) verdict(failed error) error {
	var denied *policy.DeniedError
	var proxy *problem.Upstream // takes precedence over other errors
	switch {
	case errors.As(failed, &denied):
		return denied
	case errors.As(failed, &proxy):
		return proxy
	}
	return &problem.Upstream{Reason: name.ReasonUnreachable, Name: r.d.shown, Err: failed}
}
