package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
)

// maxRounds is how often a lookup tries every upstream before it fails.
const maxRounds = 2

// rcodeError is an upstream's response code when it cannot answer: SERVFAIL, REFUSED and the like.
type rcodeError int

func (e rcodeError) Error() string { return "upstream answered " + mdns.RcodeToString[int(e)] }

// forwarder asks the upstream servers in order, except that recently failed ones come last.
type forwarder struct {
	upstreams []*upstream
	counts    *counts
	log       *zap.Logger
}

func newForwarder(c Config) (*forwarder, error) {
	dial := c.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	f := &forwarder{log: c.Log}
	for _, s := range c.Upstreams {
		u, err := newUpstream(s, dial, c.Roots)
		if err != nil {
			return nil, err
		}
		if c.Dial != nil {
			u.directAddr = netip.AddrPort{}
		}
		f.upstreams = append(f.upstreams, u)
	}
	f.counts = newCounts(c.Upstreams)
	return f, nil
}

// directUpstream returns the upstream to ask first, if it can be asked over UDP without exchange, or nil.
func (f *forwarder) directUpstream() *upstream {
	for _, u := range f.upstreams {
		if u.isHeldDown() {
			continue
		}
		if u.directAddr.IsValid() {
			return u
		}
		break
	}
	return nil
}

// attempt is a failed attempt of a reader. The zero value is no attempt.
type attempt struct {
	upstream *upstream
	sent     time.Time
	err      error
}

// exchange implements exchanger. It tries each upstream, then each once more if any did not answer at all.
func (f *forwarder) exchange(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	return f.exchangeAfter(ctx, name, qtype, attempt{})
}

// exchangeAfter is exchange after a first attempt of the reader.
func (f *forwarder) exchangeAfter(ctx context.Context, name string, qtype uint16, first attempt) (*mdns.Msg, error) {
	var errs []error
	for range maxRounds {
		silent := false
		for _, u := range f.inOrder(first.upstream) {
			a := attempt{upstream: u, sent: time.Now()}
			if u == first.upstream {
				a, first = first, attempt{}
			}
			m, err := u.exchange(ctx, name, qtype, a.err)
			if ctx.Err() == nil || err == nil { // otherwise the caller has given up
				f.countResult(u, a.sent, err)
			}
			if err == nil {
				u.markAnswered()
				return m, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", u.name, err))
			if _, failed := errors.AsType[rcodeError](err); failed {
				u.markAnswered()
			} else {
				silent = true
				f.markFailed(u, a.sent, err)
			}
			if ctx.Err() != nil {
				return nil, errors.Join(errs...)
			}
		}
		if !silent {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// countResult counts one question to u.
func (f *forwarder) countResult(u *upstream, sent time.Time, err error) {
	result := resultAnswered
	if _, refused := errors.AsType[rcodeError](err); refused {
		result = resultRefused
	} else if err != nil {
		result = resultSilent
	}
	f.counts.observe(u.name, result, time.Since(sent))
}

// markFailed skips u for a while if it does not answer at all, and logs that once.
func (f *forwarder) markFailed(u *upstream, sent time.Time, err error) {
	if u.markFailed(sent) {
		f.log.Warn("upstream DNS server does not answer; skipping it for a while",
			zap.String("upstream", u.name), zap.Duration("for", holdDown), zap.Error(err))
	}
}

// inOrder returns the upstreams in configured order, except that recently failed ones come last. If first is not nil, it
// comes first.
func (f *forwarder) inOrder(first *upstream) []*upstream {
	var good, held []*upstream
	if first != nil {
		good = append(good, first)
	}
	for _, u := range f.upstreams {
		if u == first {
			continue
		}
		if u.isHeldDown() {
			held = append(held, u)
		} else {
			good = append(good, u)
		}
	}
	return append(good, held...)
}
