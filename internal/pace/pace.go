// Package pace bounds how often something happens, at a rate that can change at any moment.
package pace

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
	applied atomic.Int64 // what own returned when the bucket was last changed; written under mu
	mu      sync.Mutex   // serialises changes of the bucket
}

// New returns a limiter for a rate a second and a burst, with a full bucket. Where own returns another rate than 0, that counts
// instead, with bursts of twice as many. It is called each time, and must be fast and safe for concurrent use.
//
// A change of the rate takes effect with the next call. It leaves the tokens in the bucket, but for those that a smaller one cannot hold.
func New(perSecond float64, burst int, own func() int64) *Limiter {
	return &Limiter{all: rate.Limit(perSecond), burst: burst, own: own, bucket: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// Allow reports whether something may happen now.
func (l *Limiter) Allow() bool { return l.AllowAt(time.Now()) }

// AllowAt reports whether something may happen at that time.
func (l *Limiter) AllowAt(now time.Time) bool {
	if l.own() != l.applied.Load() {
		l.apply(now)
	}
	return l.bucket.AllowN(now, 1)
}

// apply changes the bucket to the rate of the moment.
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
	// Now the tokens are counted, so that a bucket that becomes smaller is never full of those of the larger one.
	l.bucket.AllowN(now, 0)
	l.applied.Store(own)
}
