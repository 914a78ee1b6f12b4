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

// This file tries the addresses of a name, as the box's own client would (RFC 8305): that client's connection has succeeded
// already, namely to the gateway, so that it tries no other address by itself.

const (
	// Stagger is how long an address has before the next one is tried as well (RFC 8305, 5).
	Stagger = 250 * time.Millisecond
	// mostAddresses is how many addresses are tried for one connection.
	mostAddresses = 16
	// mostExtra is how many extra attempts a box may have under way.
	mostExtra = 64
)

// extras counts the attempts of boxes that are under way beside another one of the same connection. Connections are counted with one
// socket to a server, and names of a box's own making have any number of addresses that never answer. Safe for concurrent use.
type extras struct {
	most int // of all boxes

	mu    sync.Mutex
	all   int
	boxes map[policy.BoxID]int
}

// enter reports whether there is room for one more attempt of a box, which must leave.
func (e *extras) enter(box policy.BoxID) bool {
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

func (e *extras) leave(box policy.BoxID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.boxes[box]--; e.boxes[box] == 0 {
		delete(e.boxes, box)
	}
}

// Extra returns how many attempts are under way beside another one of the same connection.
func (p *Origins) Extra() int {
	p.extras.mu.Lock()
	defer p.extras.mu.Unlock()
	return p.extras.all
}

// race is what is under way for one connection.
type race struct {
	p   *Origins
	ctx context.Context
	box *policy.Box

	d       Target
	alone   func() bool  // no attempt is under way but those of the race; nil: so it is
	addrs   []netip.Addr // to be tried yet
	others  netip.Addr   // the rest of the name's addresses are to be found out; which was tried before
	results chan attempt
	running int   // attempts, and the search for others
	failed  error // of the attempts
}

// attempt is the end of an attempt, or of the search for other addresses.
type attempt struct {
	conn     net.Conn
	err      error
	found    []netip.Addr
	panicked any
}

// DialFirst connects box to the first of the candidates that accepts: each gets a moment before the next is tried as
// well. Where the only candidate is the address that the box has chosen for a name, the others of the name follow, each judged
// like that one. It is [Origins.Dial] after [Origins.Candidates].
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

// DialOthers connects box to one of the addresses that the name of d has apart from the one that the box has chosen, which
// is being tried or was: alone says which, and is called by the caller's goroutine. An error means that there is none, or that none accepts.
func (p *Origins) DialOthers(ctx context.Context, box *policy.Box, d Target, tried netip.Addr, alone func() bool) (net.Conn, error) {
	if !p.hasOthers(box, d, []netip.Addr{tried}) {
		return nil, errNoOthers
	}
	return (&race{p: p, box: box, d: d, alone: alone, others: tried}).run(ctx)
}

var errNoOthers = errors.New("there is no other address")

// hasOthers reports whether the name of d may have other addresses than the only candidate, and the box had a choice
// between them: it was told that the name has this one.
func (p *Origins) hasOthers(box *policy.Box, d Target, addrs []netip.Addr) bool {
	return len(addrs) == 1 && !d.There && !d.literal && !d.name.IsZero() && addrs[0].IsValid() && addrs[0] == d.Asked.Addr.Unmap() &&
		p.cfg.Resolver.Granted(box.ID, d.name, addrs[0]) && (d.ByName || resolvable(box, d.name))
}

// resolvable reports whether the policy in force lets a name be asked of the upstream DNS servers. It may be one that has been told
// the box under an earlier policy.
func resolvable(box *policy.Box, n name.Name) bool {
	c := box.Policy.Load()
	return c.Decide(policy.Request{Stage: policy.StageDNS, Box: box.ID, Name: n}).Allowed() || c.ResolvesOthers(n)
}

// isOfAll reports whether an address is of every name that the connection may be for. Where the client has not said its host, these are
// the names that the box was told for the address that it chose. Anybody can give a name that address, and with it one of their own.
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
		stagger = r.p.cfg.AddressTimeout // a proxy's answer takes as long as its way to the server
	}
	next := time.NewTimer(stagger)
	defer next.Stop()
	for r.start(); r.running > 0 || len(r.addrs) > 0 && ctx.Err() == nil; {
		var ended <-chan struct{}
		if r.running == 0 { // there is no room yet
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
				panic(a.panicked) // it ends the connection that asks
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

// start begins the next attempt, or the search for other addresses once all known ones are being tried. An attempt for which there is no
// room beside another waits.
func (r *race) start() {
	switch {
	case len(r.addrs) > 0:
		extra := r.running > 0 || r.alone != nil && !r.alone()
		if extra && !r.p.extras.enter(r.box.ID) {
			return
		}
		a := r.addrs[0]
		r.addrs = r.addrs[1:]
		d, more := r.d, len(r.addrs) > 0
		r.begin(func() (end attempt) {
			if extra {
				defer r.p.extras.leave(r.box.ID)
			}
			end.conn, end.err = r.p.DialAddr(r.ctx, r.box, d, a, more)
			return end
		})
	case r.others.IsValid():
		tried := r.others
		r.others = netip.Addr{}
		r.d.ByName = true // whatever is found, is found by the name
		d := r.d
		r.begin(func() attempt { return attempt{found: r.p.others(r.ctx, r.box, d, tried)} })
	}
}

// begin runs a part of the race in a goroutine. A panic is passed on: there it would end the gateway.
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

// drain closes connections that come when another was first.
func drain(results <-chan attempt, running int) {
	for range running {
		if a := <-results; a.conn != nil {
			socket.Abort(a.conn)
		}
	}
}

// others returns the addresses of the name of d without the one that was tried, those of the other family first in turn, which
// the connection may go to. Each has been judged.
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

// verdict returns the error for attempts of which none has succeeded.
func (r *race) verdict(failed error) error {
	var denied *policy.DeniedError
	var proxy *problem.Upstream // whatever else failed
	switch {
	case errors.As(failed, &denied):
		return denied
	case errors.As(failed, &proxy):
		return proxy
	}
	return &problem.Upstream{Reason: name.ReasonUnreachable, Name: r.d.shown, Err: failed}
}
