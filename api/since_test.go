package api

import (
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestParseSince(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"7d":                        noon.AddDate(0, 0, -7),
		"0d":                        noon,
		"1h30m":                     noon.Add(-90 * time.Minute),
		"1767355200":                noon,
		"2026-01-02T13:00:00+01:00": noon,
		"2026-01-02T12:00:00.5Z":    noon.Add(time.Second / 2),
		"2026-01-02":                noon.Add(-12 * time.Hour),
	} {
		if at, err := ParseSince(text, noon); err != nil || !at.Equal(want) {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
	for _, text := range []string{
		"", "d", "7 d", "7d1h", "1.5d", "-7d", "+7d", "-10m", "100000d", "yesterday", "9223372036854775807", "-1", "253402300800",
		"2026-13-02", "2026-02-30", "2026-1-2", "2026-01-02T12:00", "2026-13-02T12:00:00Z", "9223372036h",
	} {
		if at, err := ParseSince(text, noon); err == nil {
			t.Errorf("%q is taken for %v", text, at)
		}
	}
}

// TestParseWindow checks that dates are days of the caller's location, and that a window that can contain nothing is
// refused with both of its ends.
func TestParseWindow(t *testing.T) {
	t.Parallel()
	labels := [2]string{"--since", "--until"}
	now := noon.In(time.FixedZone("east", 2*60*60))
	w, err := ParseWindow("2026-01-01", "2026-01-02", labels, now)
	if err != nil || !w.Since.Equal(time.Date(2025, 12, 31, 22, 0, 0, 0, time.UTC)) || w.Until.Sub(w.Since) != 24*time.Hour {
		t.Error(w, err)
	}
	if w, err = ParseWindow("", "1h", labels, now); err != nil || !w.Since.IsZero() || !w.Until.Equal(noon.Add(-time.Hour)) {
		t.Error(w, err)
	}
	if _, err = ParseWindow(noon.Add(time.Minute).Format(time.RFC3339), "", labels, now); err != nil {
		t.Error("a clock that is a minute ahead:", err)
	}
	for _, bad := range []struct{ since, until, why string }{
		{"1h", "2h", "--until (2026-01-02T12:00:00+02:00) is not after --since (2026-01-02T13:00:00+02:00)"},
		{"2026-01-01", "2026-01-01", "is not after"},
		{"2026-01-03", "", "--since (2026-01-03T00:00:00+02:00) is in the future"},
		{"yesterday", "", `--since: "yesterday" is not a time`},
		{"1h", "soon", `--until: "soon" is not a time`},
	} {
		if w, err := ParseWindow(bad.since, bad.until, labels, now); err == nil || !strings.Contains(err.Error(), bad.why) || w != (Window{}) {
			t.Errorf("%s to %s: %v %v", bad.since, bad.until, w, err)
		}
	}
}

// FuzzParseSince checks that accepted times survive formatting and parsing, and that durations never lead into the
// future.
func FuzzParseSince(f *testing.F) {
	for _, text := range []string{"7d", "99999d", "1h30m", "1767355200", "2026-01-02T12:00:00Z", "2026-01-02", "9223372036854775807", "-1h", "2562047h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDuration(text); err == nil {
			back, err := ParseDuration(d.String())
			if d < 0 || err != nil || back != d {
				t.Errorf("%q: %v, again %v (%v)", text, d, back, err)
			}
		}
		at, err := ParseSince(text, noon)
		if err != nil {
			return
		}
		again, err := ParseSince(at.Format(time.RFC3339Nano), noon)
		if err != nil || !again.Equal(at) {
			t.Errorf("%q: %v, again %v (%v)", text, at, again, err)
		}
		if _, err := ParseDuration(text); err == nil && at.After(noon) {
			t.Errorf("%q: %v is ahead", text, at)
		}
	})
}
