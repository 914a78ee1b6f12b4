package config

import "time"

// Bounds limit how much is kept in files: entries that are too old or exceed the size are removed, the oldest first.
type Bounds struct {
	Days int  `yaml:"days"`
	Size Size `yaml:"size"`
}

// Age returns the maximum age of entries.
func (b Bounds) Age() time.Duration { return time.Duration(b.Days) * 24 * time.Hour }

// check checks bounds. If mayBeOff is set, a size of 0 is allowed and turns the files off.
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
