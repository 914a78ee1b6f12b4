package config

import (
	"math"
	"testing"
)

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{"0": 0, "1": 1, "64KiB": 64 << 10, "256 MiB": 256 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40, "1536MiB": 1536 << 20} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: %d, %v", text, s, err)
		}
		var again Size
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%v is read as %v, %v", s, again, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1MB", "9999999999TiB", "0x10"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, s)
		}
	}
	if Size(math.MaxInt64).String() == "" {
		t.Error("no text")
	}
}
