package api

import (
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
	} {
		if at, err := ParseSince(text, noon); err != nil || !at.Equal(want) {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
	for _, text := range []string{
		"", "d", "7 d", "7d1h", "1.5d", "-7d", "+7d", "-10m", "100000d", "yesterday", "9223372036854775807", "-1", "253402300800",
		"2026-01-02", "2026-13-02T12:00:00Z", "9223372036h",
	} {
		if at, err := ParseSince(text, noon); err == nil {
			t.Errorf("%q is taken for %v", text, at)
		}
	}
}

// FuzzParseSince checks that accepted times survive formatting and parsing, and that durations never lead into the
// future.
func FuzzParseSince(f *testing.F) {
	for _, text := range []string{"7d", "99999d", "1h30m", "1767355200", "2026-01-02T12:00:00Z", "9223372036854775807", "-1h", "2562047h"} {
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
