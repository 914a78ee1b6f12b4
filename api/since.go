package api

import (
	"errors"
	"regexp"
	"strconv"
	"time"
)

// wholeDays is a number of days. More than five digits would not fit into a duration.
var wholeDays = regexp.MustCompile(`^([0-9]{1,5})d$`)

// errDuration is the error for a text that is no duration. Who reads the text knows what it was for, and says so.
var errDuration = errors.New("not a duration such as 10m, or 7d")

// ParseDuration reads a duration of zero or more: whole days (7d), or as [time.ParseDuration] has it (1h30m). It is what every
// duration of the API and of the commands is read by that a person writes as text.
func ParseDuration(text string) (time.Duration, error) {
	if m := wholeDays.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errDuration
	}
	return d, nil
}

// errSince is the error for a text that is no point in time.
var errSince = errors.New("not a time (2026-01-02T15:04:05Z), Unix seconds, or a duration back from now (10m, 7d)")

// latest is the last second that RFC 3339 can write, in Unix seconds.
var latest = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()

// ParseSince reads a point in time, as the queries since and until have it: RFC 3339, Unix seconds, or a duration back from now.
// Its error says what would be one, and can be shown.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		if seconds < 0 || seconds > latest {
			return time.Time{}, errSince
		}
		return time.Unix(seconds, 0), nil
	}
	if back, err := ParseDuration(text); err == nil {
		return now.Add(-back), nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, errSince
	}
	return t, nil
}
