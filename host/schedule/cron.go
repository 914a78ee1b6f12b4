package schedule

import (
	"errors"
	"strings"
	"time"
	_ "time/tzdata" // hosts without a time zone database

	"github.com/netresearch/go-cron"
)

// parser reads five fields. With both days given, either matches, as in every crontab.
var parser = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom)

// maxCron is the longest expression, in bytes.
const maxCron = 256

// The mistakes in a cron expression.
var (
	errFields   = errors.New(`must be a cron expression of five fields, such as "*/5 * * * *", or one of @hourly, @daily, @weekly, @monthly and @yearly`)
	errNever    = errors.New("never comes: no such date exists")
	errZone     = errors.New(`is not a time zone of the IANA database, such as "Europe/Berlin"`)
	errZoneOnce = errors.New("the time zone is given both before the expression and besides it; give it in one place")
)

// IsZoneError reports whether a mistake is one of the time zone.
func IsZoneError(err error) bool { return errors.Is(err, errZone) || errors.Is(err, errZoneOnce) }

// Rule says when a schedule is due.
type Rule struct {
	when  cron.Schedule
	zone  *time.Location
	fixed bool // the hours are named, rather than all or every n-th of them
}

// fixedHours reports whether an expression names its hours.
func fixedHours(expression string) bool {
	if strings.HasPrefix(expression, "@") {
		return expression != "@hourly"
	}
	return !strings.HasPrefix(strings.Fields(expression)[1], "*")
}

// Parse reads a cron expression, by the clock of a time zone of the IANA database; "" is UTC. The zone may also stand before
// the expression: CRON_TZ=Europe/Berlin 0 9 * * *.
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
	r := Rule{when: when, zone: where, fixed: fixedHours(expression)}
	if r.Next(time.Now()).IsZero() {
		return Rule{}, errNever
	}
	return r, nil
}

// location loads a time zone. The machine's own, "Local", is not one that a caller can know.
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

// Next returns the first due time after t, or zero if there is none. What is due at a certain hour is due once a day: an hour
// later where that hour is left out in spring, and the first time where it comes twice in autumn.
func (r Rule) Next(t time.Time) time.Time {
	if r.when == nil {
		return time.Time{}
	}
	next := r.when.Next(t.Round(0).In(r.zone))
	for r.fixed && comesAgain(next) {
		next = r.when.Next(next)
	}
	if !next.After(t) {
		return time.Time{}
	}
	return next
}

// comesAgain reports whether the clock of the place has shown that time before, since it was put back in between.
func comesAgain(t time.Time) bool {
	const most = 3 * time.Hour // clocks are put back by one hour, or half of it
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
