package memory

import "errors"

// ErrFull refuses work for which an account has no memory left.
var ErrFull = errors.New("the box makes the gateway hold as much memory as it may")

// Doubled is a claim that counts everything twice: what a reader holds of a message may be held once more on its way out.
type Doubled struct{ *Claim }

// Grow acquires 2*n bytes more and reports whether there were as many.
func (d Doubled) Grow(n int) bool { return d.Claim.Grow(2 * n) }

// Shrink gives 2*n bytes back.
func (d Doubled) Shrink(n int) { d.Claim.Shrink(2 * n) }
