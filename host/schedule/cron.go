package schedule

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // hosts without a time zone database

	"github.com/netresearch/go-cron"
)

// parser reads five fields. If both day fields are restricted, either may match, as in every crontab.
var parser = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom)

// maxCron is the maximum length of an expression in bytes.
const maxCron = 256

// The errors of [Parse].
var (
	errFields   = errors.New(`must be a cron expression of five fields, such as "*/5 * * * *", or one of @hourly, @daily, @weekly, @monthly and @yearly`)
	errNever    = errors.New("never comes: no such date exists")
	errZone     = errors.New(`is not a time zone of the IANA database, such as "Europe/Berlin"`)
	errZoneOnce = errors.New("the time zone is given twice, in the expression and in time_zone; give it in one place")
)

// IsZoneError reports whether an error of [Parse] is about the time zone.
func IsZoneError(err error) bool { return errors.Is(err, errZone) || errors.Is(err, errZoneOnce) }

// Rule computes the due times of a schedule.
type Rule struct {
	when  cron.Schedule
	zone  *time.Location
	fixed bool // the hour field lists hours, as opposed to all or every n-th
	every bool // all hours
}

// fixedHours reports whether an expression lists its hours.
func fixedHours(expression string) bool {
	if strings.HasPrefix(expression, "@") {
		return expression != "@hourly"
	}
	return !strings.HasPrefix(strings.Fields(expression)[1], "*")
}

// everyHour reports whether an expression matches all hours.
func everyHour(expression string) bool {
	return expression == "@hourly" || !strings.HasPrefix(expression, "@") && strings.Fields(expression)[1] == "*"
}

// Parse parses a cron expression in a time zone of the IANA database; "" is UTC. The zone may also precede the
// expression: CRON_TZ=Europe/Berlin 0 9 * * *.
func Parse(expression, zone string) (Rule, error) {
	if rest, ok := strings.CutPrefix(expression, "CRON_TZ="); ok {
		if zone != "" {
			return Rule{}, errZoneOnce
		}
		zone, expression, _ = strings.Cut(rest, " ")
		if zone == "" {
			return Rule{}, errZone
		}
	}
	where, err := location(zone)
	if err != nil {
		return Rule{}, err
	}
	expression = strings.Trim(expression, " ")
	if len(expression) > maxCron || strings.Contains(expression, "TZ=") || strings.HasPrefix(expression, "@every") ||
		strings.ContainsFunc(expression, func(r rune) bool { return r <= ' ' && r != ' ' || r > '~' }) {
		return Rule{}, errFields
	}
	when, err := parser.Parse(expression)
	if err != nil {
		return Rule{}, errFields
	}
	r := Rule{when: when, zone: where, fixed: fixedHours(expression), every: everyHour(expression)}
	if r.Next(time.Now()).IsZero() {
		return Rule{}, errNever
	}
	return r, nil
}

// location loads a time zone. It rejects "Local", because callers do not know the machine's zone.
func location(zone string) (*time.Location, error) {
	if len(zone) > 64 || zone == "Local" {
		return nil, errZone
	}
	where, err := time.LoadLocation(zone)
	if err != nil {
		return nil, errZone
	}
	return where, nil
}

// Next returns the first due time after t, zero if the rule never matches again. A rule with fixed hours is due once a day even when
// clocks change: an hour later if its hour is skipped in spring, and only the first time if it repeats in autumn.
func (r Rule) Next(t time.Time) time.Time {
	if r.when == nil {
		return time.Time{}
	}
	if t = t.Round(0); t.Before(earliest) {
		t = earliest
	}
	next := r.following(t)
	for r.fixed && isRepeated(next) {
		next = r.following(next)
	}
	return next
}

// earliest is the earliest plausible time: a clock that shows less was never set.
var earliest = time.Unix(0, 0)

// following returns the first time after t that the expression matches. The cron package's own loop over clock changes
// does not terminate where a zone skips a whole day, as Samoa did in 2011, so following queries one period between two
// changes at a time.
func (r Rule) following(t time.Time) time.Time {
	for period := t.In(r.zone); ; {
		_, offset := period.Zone()
		_, end := period.ZoneBounds()
		next := r.when.Next(t.In(time.FixedZone("", offset)))
		switch {
		case next.IsZero():
			return time.Time{}
		case end.IsZero() || next.Before(end) || r.isSkipped(next, end, offset):
			return next.In(r.zone)
		}
		period, t = end, end.Add(-time.Nanosecond) // the end itself may match
	}
}

// isSkipped reports whether next, in the zone's offset before a change, falls into the gap that the change creates. A whole
// skipped day has no due times.
func (r Rule) isSkipped(next, change time.Time, before int) bool {
	_, after := change.In(r.zone).Zone()
	gap := time.Duration(after-before) * time.Second
	return !r.every && gap < 12*time.Hour && next.Before(change.Add(gap))
}

// isRepeated reports whether the zone's clock has shown the same time before, because it was set back in between.
func isRepeated(t time.Time) bool {
	const most = 3 * time.Hour // clocks are set back by one hour or half an hour
	_, now := t.Zone()
	_, before := t.Add(-most).Zone()
	back := time.Duration(before-now) * time.Second
	if back <= 0 {
		return false
	}
	first := t.Add(-back)
	_, then := first.Zone()
	return then == before
}
