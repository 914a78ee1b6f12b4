package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
)

// rounds is how often every upstream is tried before a lookup fails.
const rounds = 2

// rcodeError is an upstream's response code when it cannot answer: SERVFAIL, REFUSED and the like.
type rcodeError int

func (e rcodeError) Error() string { return "upstream answered " + mdns.RcodeToString[int(e)] }

// forwarder asks the upstream servers in order of preference, skipping those that failed recently.
type forwarder struct {
	upstreams []*upstream
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
			u.direct = netip.AddrPort{}
		}
		f.upstreams = append(f.upstreams, u)
	}
	return f, nil
}

// direct returns the upstream to ask first, if it can be asked over UDP without exchange, or nil.
func (f *forwarder) direct() *upstream {
	for _, u := range f.upstreams {
		if u.held() {
			continue
		}
		if u.direct.IsValid() {
			return u
		}
		break
	}
	return nil
}

// exchange implements exchanger. It tries each upstream, then each once more if any did not answer at all.
func (f *forwarder) exchange(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
	var errs []error
	for range rounds {
		silent := false
		for _, u := range f.order() {
			m, err := u.exchange(ctx, name, qtype)
			if err == nil {
				u.succeeded()
				return m, nil
			}
			errs = append(errs, fmt.Errorf("%s: %w", u.name, err))
			if _, answered := errors.AsType[rcodeError](err); !answered {
				silent = true
				f.failed(u, err)
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

// failed skips u for a while, and logs that once.
func (f *forwarder) failed(u *upstream, err error) {
	if u.failed() {
		f.log.Warn("upstream DNS server does not answer; skipping it for a while",
			zap.String("upstream", u.name), zap.Duration("for", holdDown), zap.Error(err))
	}
}

// order is the configured order, with the upstreams that failed recently last.
func (f *forwarder) order() []*upstream {
	var good, held []*upstream
	for _, u := range f.upstreams {
		if u.held() {
			held = append(held, u)
		} else {
			good = append(good, u)
		}
	}
	return append(good, held...)
}
