package dns

import (
	"context"
	"errors"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"

	"boxgate/dns/outbound"
	"boxgate/policy"
)

const (
	// maxAsked is how many questions one reader has open. Beyond it, queries take the general way.
	maxAsked = 512
	// sweepInterval is how often it looks for those that it has waited for too long.
	sweepInterval = 50 * time.Millisecond
	// askedIdle is how long a reader keeps the sockets when no question is open.
	askedIdle = time.Second
	// prepareInterval is how long it does not try to open them after it could not.
	prepareInterval = time.Second
)

// errGivenUp ends the questions of a reader that stops.
var errGivenUp = errors.New("the reader stops")

// asked are the questions that a reader itself has sent upstream. For the queries that wait for nothing but one answer
// over UDP, it needs no goroutine: when the answer is in the cache, they are answered directly like any other. Whatever
// else happens, they take the general way.
type asked struct {
	sockets *outbound.Sockets[lookup] // nil: nothing was asked lately
	open    map[cacheKey]*outbound.Question[lookup]
	swept   time.Time
	used    time.Time // when a question was open last
}

// lookup is what one question is for.
type lookup struct {
	key     cacheKey
	server  *upstream
	flight  *flight
	usage   *usage // that it is charged to
	waiting []waiting
}

// ask has a query wait for the answer that it misses, which upstream is asked for, and reports false if it has to take the
// general way.
func (r *reader) ask(w waiting, missing cacheKey) bool {
	if missing.name.IsZero() || r.up == nil {
		return false
	}
	if q := r.asked.open[missing]; q != nil {
		q.For.waiting = append(q.For.waiting, w)
		return true
	}
	server := r.up.direct()
	if server == nil || !r.prepare(w.now) || !r.cache.reserve(w.usage) {
		return false
	}
	l := lookup{key: missing, server: server, usage: w.usage}
	if l.flight = r.cache.board(missing); l.flight == nil {
		r.cache.release(w.usage)
		return false
	}
	q, err := r.asked.sockets.Ask(server.direct, missing.name.String(), missing.qtype, w.now)
	if err != nil {
		r.land(l, nil)
		return false
	}
	l.waiting = append(l.waiting, w)
	q.For = l
	r.asked.open[missing] = q
	return true
}

// prepare opens what is needed to ask. If that fails, it does not try again for a while: every query would.
func (r *reader) prepare(now time.Time) bool {
	if r.asked.sockets != nil {
		return true
	}
	if now.Before(r.retry) {
		return false
	}
	sockets, err := outbound.New[lookup](maxAsked, r.budget, r.socket.fd)
	if err != nil {
		r.retry = now.Add(prepareInterval)
		r.log.Warn("cannot ask upstream from the reader of a DNS socket", zap.Error(err))
		return false
	}
	r.asked = asked{sockets: sockets, open: map[cacheKey]*outbound.Question[lookup]{}, swept: now, used: now}
	return true
}

// await waits until an answer has arrived or the socket is readable, which it reports.
func (r *reader) await(ctx context.Context) (readable bool, err error) {
	readable, err = r.asked.sockets.Wait(sweepInterval, func(q *outbound.Question[lookup], message []byte, err error) {
		r.end(ctx, q, message, err)
	})
	r.sweep(ctx, time.Now())
	return readable && err == nil, err
}

// sweep ends what has waited for too long, and closes the sockets when they are not needed.
func (r *reader) sweep(ctx context.Context, now time.Time) {
	if now.Sub(r.asked.swept) < sweepInterval {
		return
	}
	r.asked.swept = now
	r.asked.sockets.Each(func(q *outbound.Question[lookup]) {
		r.asked.used = now
		if now.Sub(q.Sent) >= q.For.server.try {
			r.end(ctx, q, nil, context.DeadlineExceeded)
		}
	})
	if now.Sub(r.asked.used) >= askedIdle {
		r.giveUp(ctx)
	}
}

// giveUp closes the sockets. What is waiting takes the general way.
func (r *reader) giveUp(ctx context.Context) {
	if r.asked.sockets == nil {
		return
	}
	r.asked.sockets.Each(func(q *outbound.Question[lookup]) { r.end(ctx, q, nil, errGivenUp) })
	_ = r.asked.sockets.Close()
	r.asked = asked{}
}

// end ends a question with an answer or the reason why there is none, and answers the queries that wait for it. What came
// of it reaches them all, whether it may be kept or not: none asks again.
func (r *reader) end(ctx context.Context, q *outbound.Question[lookup], message []byte, err error) {
	l, sent := q.For, q.Sent
	r.asked.sockets.End(q)
	delete(r.asked.open, l.key)
	var a *answer
	if err == nil {
		l.server.answered()
		if a, err = take(message, l.key); err == nil {
			r.up.note(l.server, sent, nil)
		}
	}
	if err == nil && a.life > 0 {
		r.cache.keep(l.key, a, len(message))
		r.land(l, a)
		r.answerNow(ctx, l.waiting)
		return
	}
	f, _ := r.cache.join(l.key) // which is l.flight
	for _, w := range l.waiting {
		r.answerInTime(onFlight(ctx, l.key, f), w)
	}
	switch {
	case err == nil:
		r.land(l, a)
	case errors.Is(err, errGivenUp):
		r.land(l, nil)
	default:
		go r.resume(l, attempt{at: l.server, sent: sent, err: err})
	}
}

// take returns what to keep of an answer, or the error after which a lookup tries something else.
func take(message []byte, k cacheKey) (*answer, error) {
	a, err := digestMessage(message, k, time.Now())
	if _, failed := errors.AsType[rcodeError](err); err == nil || failed || errors.Is(err, errUseStream) {
		return a, err
	}
	return failure(err), nil
}

// resume has the lookup go on after the reader's attempt: over a stream, or with the other upstreams.
func (r *reader) resume(l lookup, first attempt) {
	r.land(l, r.cache.lookupBy(l.key, first.sent.Add(r.cache.timeout), func(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
		return r.up.exchangeAfter(ctx, name, qtype, first)
	}))
}

// answerNow answers queries whose answer is in the cache.
func (r *reader) answerNow(ctx context.Context, queries []waiting) {
	now := time.Now()
	for _, w := range queries {
		w.now = now
		out, ok := r.answerDirectly(ctx, w.visit, policy.UDP, w.wire, &r.desk, r.batch.room())
		if !ok {
			r.answerInTime(ctx, w)
			continue
		}
		r.batch.add(out, w.from)
		w.leave()
	}
}

// answerInTime answers a query the general way, in what is left of the time that a lookup may take.
func (r *reader) answerInTime(ctx context.Context, w waiting) {
	ctx, cancel := context.WithDeadline(ctx, w.arrived.Add(r.cache.timeout))
	w.done = cancel
	r.answerApart(ctx, w)
}

// land ends the flight of a lookup, which is over.
func (r *reader) land(l lookup, a *answer) {
	r.cache.land(l.key, l.flight, a)
	r.cache.release(l.usage)
}
