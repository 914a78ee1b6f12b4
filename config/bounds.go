package config

import "time"

// Bounds say how much is kept in files: what is older, and what is too much, is removed, the oldest first.
type Bounds struct {
	Days int  `yaml:"days"`
	Size Size `yaml:"size"`
}

// Age is how old what is kept can be.
func (b Bounds) Age() time.Duration { return time.Duration(b.Days) * 24 * time.Hour }

// check checks bounds, which may be off with a size of 0 if that is allowed.
func (b Bounds) check(key string, mayBeOff bool, fail func(key, format string, args ...any)) {
	if b.Days < 1 || b.Days > 3660 {
		fail(key+".days", "%d is out of range; use 1 to 3660", b.Days)
	}
	if mayBeOff && b.Size == 0 {
		return
	}
	if b.Size < 1<<20 || b.Size > 1<<40 {
		fail(key+".size", "%v is out of range; use 1MiB to 1TiB", b.Size)
	}
}
