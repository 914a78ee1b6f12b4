// Package ratelimit has a rate limiter whose rate can change at any moment.
package ratelimit

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limiter is a token bucket. Create it with [New]. Safe for concurrent use.
type Limiter struct {
	all   rate.Limit
	burst int
	own   func() int64

	bucket  *rate.Limiter
	applied atomic.Int64 // value of own at the last change of the bucket; written under mu
	mu      sync.Mutex   // serialises changes of the bucket
}

// New returns a limiter with a rate per second and a burst, with a full bucket. If own returns a rate other than 0,
// that rate replaces perSecond, with a burst of twice the rate. own is called each time, and must be fast and safe for
// concurrent use.
//
// A changed rate takes effect with the next call. The bucket keeps its tokens up to its new size.
func New(perSecond float64, burst int, own func() int64) *Limiter {
	return &Limiter{all: rate.Limit(perSecond), burst: burst, own: own, bucket: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Allow reports whether an event may happen now.
func (l *Limiter) Allow() bool { return l.AllowAt(time.Now()) }

// AllowAt reports whether an event may happen at the given time.
func (l *Limiter) AllowAt(now time.Time) bool {
	if l.own() != l.applied.Load() {
		l.apply(now)
	}
	return l.bucket.AllowN(now, 1)
}

// apply sets the bucket to the current rate.
func (l *Limiter) apply(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.own()
	limit, burst := l.all, l.burst
	if own != 0 {
		limit, burst = rate.Limit(own), int(2*own)
	}
	if own == l.applied.Load() {
		return
	}
	l.bucket.SetLimitAt(now, limit)
	l.bucket.SetBurstAt(now, burst)
	// Count the tokens now, so that a bucket that shrinks drops the tokens above its new size.
	l.bucket.AllowN(now, 0)
	l.applied.Store(own)
}
