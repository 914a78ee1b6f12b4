package policy

import "sync/atomic"

// Live is the one mutable cell of a box's policy. The zero value holds nothing and denies. Safe for concurrent use.
type Live struct{ p atomic.Pointer[Compiled] }

// Load returns the policy in force, or nil (which denies) when none was stored.
func (l *Live) Load() *Compiled { return l.p.Load() }

// Store puts c in force for every decision that begins afterwards.
func (l *Live) Store(c *Compiled) { l.p.Store(c) }
