package api

import (
	"errors"
	"fmt"
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
var errSince = errors.New("not a time (2026-01-02T15:04:05Z), a date (2026-01-02), Unix seconds, or a duration back from now (10m, 7d)")

// latest is the last second that RFC 3339 can express, in Unix seconds.
var latest = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()

// ParseSince parses a point in time from the query parameters since and until, and from the flags of the same names: RFC
// 3339, a date, which stands for its midnight in the location of now, Unix seconds, or a duration back from now. Its error
// lists these forms and may be shown to the caller.
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
	if day, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return day, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, errSince
	}
	return t, nil
}

// clockSkew is how far a caller's clock may be ahead.
const clockSkew = 5 * time.Minute

// Window is the time from Since until before Until. A zero time is no limit.
type Window struct{ Since, Until time.Time }

// ParseWindow parses the limits of a window like [ParseSince]; an empty text is no limit. A window that can contain
// nothing is an error: one that ends before it begins, or begins in the future. Errors may be shown to the caller. labels
// are the names of the parameters or flags for errors.
func ParseWindow(since, until string, labels [2]string, now time.Time) (w Window, err error) {
	for i, into := range []*time.Time{&w.Since, &w.Until} {
		text := [2]string{since, until}[i]
		if text == "" {
			continue
		}
		if *into, err = ParseSince(text, now); err != nil {
			return Window{}, fmt.Errorf("%s: %+.40q is %w", labels[i], text, err)
		}
	}
	switch {
	case w.Since.After(now.Add(clockSkew)):
		return Window{}, fmt.Errorf("%s (%s) is in the future; it is %s", labels[0], w.Since.Format(time.RFC3339), now.Format(time.RFC3339))
	case !w.Until.IsZero() && !w.Until.After(w.Since):
		return Window{}, fmt.Errorf("%s (%s) is not after %s (%s)", labels[1], w.Until.Format(time.RFC3339), labels[0], w.Since.Format(time.RFC3339))
	}
	return w, nil
}
