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
	// maxOpenQuestions bounds the open questions of one reader. Further queries take the general path.
	maxOpenQuestions = 512
	// sweepInterval is how often a reader looks for questions that have timed out.
	sweepInterval = 50 * time.Millisecond
	// socketIdleTime is how long a reader keeps its sockets when no question is open.
	socketIdleTime = time.Second
	// prepareInterval is how long a reader waits after it failed to open sockets before it tries again.
	prepareInterval = time.Second
)

// errReaderStopped ends the questions of a reader that stops or closes its idle sockets.
var errReaderStopped = errors.New("the reader stops")

// openQuestions holds the questions that a reader itself has sent upstream. A query that needs a single answer over UDP
// then takes no goroutine: once the answer is in the cache, the query is answered directly. All other queries take the
// general path.
type openQuestions struct {
	sockets   *outbound.Sockets[lookup] // nil: closed while idle
	byKey     map[cacheKey]*outbound.Question[lookup]
	lastSweep time.Time
	lastOpen  time.Time // when a question was open last
}

// lookup is the purpose of one question.
type lookup struct {
	key     cacheKey
	server  *upstream
	flight  *flight
	usage   *usage // of the box that is charged for it
	queries []pendingQuery
}

// askUpstream makes the query w wait for the answer that it misses, and asks upstream for it. It reports false if the
// query has to take the general path.
func (r *reader) askUpstream(w pendingQuery, missing cacheKey) bool {
	if missing.name.IsZero() || r.up == nil {
		return false
	}
	if q := r.questions.byKey[missing]; q != nil {
		q.For.queries = append(q.For.queries, w)
		return true
	}
	server := r.up.directUpstream()
	if server == nil || !r.openSockets(w.now) || !r.cache.acquireSlot(w.usage) {
		return false
	}
	l := lookup{key: missing, server: server, usage: w.usage}
	if l.flight = r.cache.startFlight(missing); l.flight == nil {
		r.cache.releaseSlot(w.usage)
		return false
	}
	q, err := r.questions.sockets.Ask(server.directAddr, missing.name.String(), missing.qtype, w.now)
	if err != nil {
		r.endLookup(l, nil)
		return false
	}
	l.queries = append(l.queries, w)
	q.For = l
	r.questions.byKey[missing] = q
	return true
}

// openSockets opens the sockets for asking upstream. After a failure it waits for prepareInterval, so that not every
// query tries again.
func (r *reader) openSockets(now time.Time) bool {
	if r.questions.sockets != nil {
		return true
	}
	if now.Before(r.retryOpen) {
		return false
	}
	sockets, err := outbound.New[lookup](maxOpenQuestions, r.budget, r.socket.fd)
	if err != nil {
		r.retryOpen = now.Add(prepareInterval)
		r.log.Warn("cannot ask upstream from the reader of a DNS socket", zap.Error(err))
		return false
	}
	r.questions = openQuestions{sockets: sockets, byKey: map[cacheKey]*outbound.Question[lookup]{}, lastSweep: now, lastOpen: now}
	return true
}

// awaitAnswer waits until an answer arrives or the socket is readable, and reports whether the socket is readable.
func (r *reader) awaitAnswer(ctx context.Context) (readable bool, err error) {
	readable, err = r.questions.sockets.Wait(sweepInterval, func(q *outbound.Question[lookup], message []byte, err error) {
		r.endQuestion(ctx, q, message, err)
	})
	r.expireQuestions(ctx, time.Now())
	return readable && err == nil, err
}

// expireQuestions ends the questions that have timed out, and closes the sockets when they are no longer needed.
func (r *reader) expireQuestions(ctx context.Context, now time.Time) {
	if now.Sub(r.questions.lastSweep) < sweepInterval {
		return
	}
	r.questions.lastSweep = now
	r.questions.sockets.Each(func(q *outbound.Question[lookup]) {
		r.questions.lastOpen = now
		if now.Sub(q.Sent) >= q.For.server.timeout {
			r.endQuestion(ctx, q, nil, context.DeadlineExceeded)
		}
	})
	if now.Sub(r.questions.lastOpen) >= socketIdleTime {
		r.closeSockets(ctx)
	}
}

// closeSockets closes the sockets. Waiting queries take the general path.
func (r *reader) closeSockets(ctx context.Context) {
	if r.questions.sockets == nil {
		return
	}
	r.questions.sockets.Each(func(q *outbound.Question[lookup]) { r.endQuestion(ctx, q, nil, errReaderStopped) })
	_ = r.questions.sockets.Close()
	r.questions = openQuestions{}
}

// endQuestion ends a question with an answer or an error, and answers the queries that wait for it. All of them get this
// result, even if it may not be cached, and do not ask upstream again.
func (r *reader) endQuestion(ctx context.Context, q *outbound.Question[lookup], message []byte, err error) {
	l, sent := q.For, q.Sent
	r.questions.sockets.End(q)
	delete(r.questions.byKey, l.key)
	var a *answer
	if err == nil {
		l.server.markAnswered()
		if a, err = cacheableAnswer(message, l.key); err == nil {
			r.up.countResult(l.server, sent, nil)
		}
	}
	if err == nil && a.life > 0 {
		r.cache.storeAnswer(l.key, a, len(message))
		r.endLookup(l, a)
		r.answerCached(ctx, l.queries)
		return
	}
	f, _ := r.cache.joinFlight(l.key) // this is l.flight
	for _, w := range l.queries {
		r.answerBeforeDeadline(withFlight(ctx, l.key, f), w)
	}
	switch {
	case err == nil:
		r.endLookup(l, a)
	case errors.Is(err, errReaderStopped):
		r.endLookup(l, nil)
	default:
		go r.resumeLookup(l, attempt{upstream: l.server, sent: sent, err: err})
	}
}

// cacheableAnswer returns the answer to cache, or an error after which the lookup tries something else.
func cacheableAnswer(message []byte, k cacheKey) (*answer, error) {
	a, err := digestMessage(message, k, time.Now())
	if _, failed := errors.AsType[rcodeError](err); err == nil || failed || errors.Is(err, errUseStream) {
		return a, err
	}
	return failure(err), nil
}

// resumeLookup continues the lookup after the reader's attempt: over a stream, or with the other upstreams.
func (r *reader) resumeLookup(l lookup, first attempt) {
	r.endLookup(l, r.cache.lookupThrough(l.key, first.sent.Add(r.cache.timeout), func(ctx context.Context, name string, qtype uint16) (*mdns.Msg, error) {
		return r.up.exchangeAfter(ctx, name, qtype, first)
	}))
}

// answerCached answers queries whose answer is in the cache.
func (r *reader) answerCached(ctx context.Context, queries []pendingQuery) {
	now := time.Now()
	for _, w := range queries {
		w.now = now
		out, ok := r.answerDirectly(ctx, w.visit, policy.UDP, w.wire, &r.scratch, r.batch.replyBuffer())
		if !ok {
			r.answerBeforeDeadline(ctx, w)
			continue
		}
		r.batch.add(out, w.from)
		w.release()
	}
}

// answerBeforeDeadline answers a query on the general path, within the rest of its lookup timeout.
func (r *reader) answerBeforeDeadline(ctx context.Context, w pendingQuery) {
	ctx, cancel := context.WithDeadline(ctx, w.arrived.Add(r.cache.timeout))
	w.done = cancel
	r.answerInBackground(ctx, w)
}

// endLookup ends the flight of a finished lookup.
func (r *reader) endLookup(l lookup, a *answer) {
	r.cache.endFlight(l.key, l.flight, a)
	r.cache.releaseSlot(l.usage)
}
