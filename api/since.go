package api

import (
	"errors"
	"regexp"
	"strconv"
	"time"
)

// wholeDays is a number of days. More than five digits could overflow a duration.
var wholeDays = regexp.MustCompile(`^([0-9]{1,5})d$`)

// errDuration is returned for text that is not a duration. Callers add its purpose.
var errDuration = errors.New("not a duration such as 10m, or 7d")

// ParseDuration parses a non-negative duration: whole days (7d) or the syntax of [time.ParseDuration] (1h30m). All
// durations in text form, in the API and on the command line, are parsed by it.
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

// errSince is returned for text that is not a point in time.
var errSince = errors.New("not a time (2026-01-02T15:04:05Z), Unix seconds, or a duration back from now (10m, 7d)")

// latest is the last second that RFC 3339 can express, in Unix seconds.
var latest = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()

// ParseSince parses a point in time from the query parameters since and until: RFC 3339, Unix seconds, or a duration back
// from now. Its error lists these forms and may be shown to the caller.
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
