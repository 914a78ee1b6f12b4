package lease

import (
	"testing"
	"time"

	"boxgate/store"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// at returns a moment: wall after noon on the wall clock, and since after boot.
func at(boot string, wall, since time.Duration) Now {
	return Now{Wall: noon.Add(wall), Boot: boot, Since: time.Hour + since}
}

// A lease ends on time by the boot clock. A wall clock that jumps ends permissions early and never prolongs them. It does
// not end denials, nor prolong them while the host is up.
func TestClocks(t *testing.T) {
	t.Parallel()
	const m = time.Minute
	for _, c := range []struct {
		name        string
		now         Now
		allow, deny time.Duration // remaining time of an hour
	}{
		{"at once", at("a", 0, 0), 60 * m, 60 * m},
		{"later", at("a", 20*m, 20*m), 40 * m, 40 * m},
		{"the last instant", at("a", 60*m-1, 60*m-1), 1, 1},
		{"the end", at("a", 60*m, 60*m), 0, 0},
		{"set forward", at("a", 50*m, 20*m), 10 * m, 40 * m},
		{"set forward past the end", at("a", 24*60*m, 20*m), 0, 40 * m},
		{"set back", at("a", -24*60*m, 20*m), 40 * m, 40 * m},
		{"set back, and over", at("a", -24*60*m, 60*m), 0, 0},
		{"after a reboot", at("b", 20*m, -30*m), 40 * m, 40 * m},
		{"after a reboot, over", at("b", 60*m, -30*m), 0, 0},
		{"after a reboot, set back", at("b", -m, -30*m), 0, 60 * m},
		{"boot not known", at("", 20*m, 0), 40 * m, 40 * m},
	} {
		for allow, want := range map[bool]time.Duration{true: c.allow, false: c.deny} {
			l := New(allow, "example.com", time.Hour, at("a", 0, 0))
			if got := Remaining(l, c.now); got != want {
				t.Errorf("%s, allow %v: %v left, want %v", c.name, allow, got, want)
			}
			if got := len(Running([]store.Lease{l}, c.now)); (got == 1) != (want > 0) {
				t.Errorf("%s, allow %v: %d run", c.name, allow, got)
			}
		}
	}
}

// From its first use after a reboot on, a lease is measured by the new boot clock.
func TestAnchored(t *testing.T) {
	t.Parallel()
	start := at("a", 0, 0)
	allow, deny := New(true, "example.com", time.Hour, start), New(false, "example.com", time.Hour, start)
	rebooted := at("b", 20*time.Minute, -30*time.Minute)
	allow, deny = Rebase(allow, rebooted), Rebase(deny, rebooted)
	back, forward := at("b", -time.Hour, 0), at("b", 48*time.Hour, 0) // half an hour later
	if got := Remaining(allow, back); got != 10*time.Minute {
		t.Errorf("an hour that began twenty minutes before: %v left", got)
	}
	if got := Remaining(allow, forward); got != 0 {
		t.Errorf("past its end: %v left", got)
	}
	for _, now := range []Now{back, forward} {
		if got := Remaining(deny, now); got != 10*time.Minute {
			t.Errorf("a denial: %v left", got)
		}
	}
	if again := Rebase(allow, at("b", 0, 0)); again != allow {
		t.Errorf("anchored twice: %+v", again)
	}
}

func TestSystem(t *testing.T) {
	t.Parallel()
	first, second := System(), System()
	if first.Boot == "" || first.Boot != second.Boot || second.Since < first.Since || first.Since <= 0 {
		t.Errorf("%+v, then %+v", first, second)
	}
	if l := New(true, "example.com", time.Hour, first); Remaining(l, second) <= 59*time.Minute || Remaining(l, second) > time.Hour {
		t.Errorf("%v left", Remaining(l, second))
	}
}
