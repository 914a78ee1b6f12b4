package h2

import "time"

const (
	budgetMax  = 10_000 // frames at a time
	budgetRate = 100    // frames a second
)

// Budget limits the frames of a peer that are cheap to send and request no work: SETTINGS, PING, PRIORITY, WINDOW_UPDATE,
// resets, frames of unknown types. Requests and content earn the peer more of them ([Budget.Earn]), and time a few. The zero
// value is full. Not safe for concurrent use.
type Budget struct {
	spent int
	since time.Time // when spent was last reduced for the time
}

// Earn lets the peer send n frames more.
func (b *Budget) Earn(n int) { b.spent = max(0, b.spent-n) }

// Spend counts a frame, and reports whether the peer may send it: else the connection must end with ENHANCE_YOUR_CALM.
func (b *Budget) Spend() bool {
	if b.spent++; b.spent < budgetMax {
		return true
	}
	now := time.Now()
	if b.since.IsZero() {
		b.since = now
		return true
	}
	if earned := int(now.Sub(b.since).Seconds() * budgetRate); earned > 0 {
		b.since = now
		b.Earn(earned)
	}
	return b.spent <= budgetMax
}
