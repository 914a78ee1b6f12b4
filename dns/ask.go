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
	// maxAsked bounds the open questions of one reader. Further queries take the general path.
	maxAsked = 512
	// sweepInterval is how often a reader looks for questions that have timed out.
	sweepInterval = 50 * time.Millisecond
	// askedIdle is how long a reader keeps its sockets when no question is open.
	askedIdle = time.Second
	// prepareInterval is how long a reader waits after it failed to open sockets before it tries again.
	prepareInterval = time.Second
)

// errGivenUp ends the questions of a reader that stops or closes its idle sockets.
var errGivenUp = errors.New("the reader stops")

// asked holds the questions that a reader itself has sent upstream. A query that needs a single answer over UDP then
// takes no goroutine: once the answer is in the cache, the query is answered directly. All other queries take the
// general path.
type asked struct {
	sockets *outbound.Sockets[lookup] // nil: closed while idle
	open    map[cacheKey]*outbound.Question[lookup]
	swept   time.Time
	used    time.Time // when a question was open last
}

// lookup is the purpose of one question.
type lookup struct {
	key     cacheKey
	server  *upstream
	flight  *flight
	usage   *usage // of the box that is charged for it
	waiting []waiting
}

// ask makes the query w wait for the answer that it misses, and asks upstream for it. It reports false if the query has
// to take the general path.
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

// prepare opens the sockets for asking upstream. After a failure it waits for prepareInterval, so that not every query
// tries again.
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

// await waits until an answer arrives or the socket is readable, and reports whether the socket is readable.
func (r *reader) await(ctx context.Context) (readable bool, err error) {
	readable, err = r.asked.sockets.Wait(sweepInterval, func(q *outbound.Question[lookup], message []byte, err error) {
		r.end(ctx, q, message, err)
	})
	r.sweep(ctx, time.Now())
	return readable && err == nil, err
}

// sweep ends the questions that have timed out, and closes the sockets when they are no longer needed.
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

// giveUp closes the sockets. Waiting queries take the general path.
func (r *reader) giveUp(ctx context.Context) {
	if r.asked.sockets == nil {
		return
	}
	r.asked.sockets.Each(func(q *outbound.Question[lookup]) { r.end(ctx, q, nil, errGivenUp) })
	_ = r.asked.sockets.Close()
	r.asked = asked{}
}

// end ends a question with an answer or an error, and answers the queries that wait for it. They all get this result,
// even if it may not be cached: none of them asks upstream again.
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
	f, _ := r.cache.join(l.key) // this is l.flight
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

// take returns the answer to cache, or an error after which the lookup tries something else.
func take(message []byte, k cacheKey) (*answer, error) {
	a, err := digestMessage(message, k, time.Now())
	if _, failed := errors.AsType[rcodeError](err); err == nil || failed || errors.Is(err, errUseStream) {
		return a, err
	}
	return failure(err), nil
}

// resume continues the lookup after the reader's attempt: over a stream, or with the other upstreams.
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

// answerInTime answers a query on the general path, within the rest of its lookup timeout.
func (r *reader) answerInTime(ctx context.Context, w waiting) {
	ctx, cancel := context.WithDeadline(ctx, w.arrived.Add(r.cache.timeout))
	w.done = cancel
	r.answerApart(ctx, w)
}

// land ends the flight of a finished lookup.
func (r *reader) land(l lookup, a *answer) {
	r.cache.land(l.key, l.flight, a)
	r.cache.release(l.usage)
}
