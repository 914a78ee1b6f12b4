package memory

import "errors"

// ErrFull refuses work that exceeds the memory limit of an account.
var ErrFull = errors.New("the box has reached its memory limit in the gateway")

// Doubled is a claim that counts every byte twice, because a message may be buffered for reading and again for writing.
type Doubled struct{ *Claim }

// Grow acquires 2*n more bytes and reports whether they were available.
func (d Doubled) Grow(n int) bool { return d.Claim.Grow(2 * n) }

// Shrink releases 2*n bytes.
func (d Doubled) Shrink(n int) { d.Claim.Shrink(2 * n) }
