package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 3, 1, 10, 2, 30, 0, time.UTC)
	for expression, want := range map[string]string{
		"*/5 * * * *": "2026-03-01 10:05", "0 9 * * 1-5": "2026-03-02 09:00", "@daily": "2026-03-02 00:00", "0 0 29 2 *": "2028-02-29 00:00",
		"0 9 1 * MON":                        "2026-03-02 09:00", // either day may match, as in every crontab
		"CRON_TZ=America/New_York 0 4 * * *": "2026-03-02 09:00", "  0 11 * * *  ": "2026-03-01 11:00",
	} {
		r, err := Parse(expression, "")
		if err != nil || r.Next(from).UTC().Format("2006-01-02 15:04") != want {
			t.Errorf("%q: %v, %v; want %s", expression, r.Next(from), err, want)
		}
	}
	for expression, want := range map[string]error{
		"": errFields, "* * * *": errFields, "* * * * * *": errFields, "60 * * * *": errFields, "@every 1s": errFields, "@reboot": errFields,
		"*\t* * * *": errFields, "* * * * *\n": errFields, "H * * * *": errFields, strings.Repeat("1,", 200) + "1 * * * *": errFields,
		"TZ=UTC * * * * *": errFields, "CRON_TZ=UTC TZ=UTC * * * * *": errFields, "CRON_TZ=": errZone, "CRON_TZ=Local * * * * *": errZone,
		"CRON_TZ=../../etc/passwd * * * * *": errZone, "CRON_TZ=No/Where * * * * *": errZone, "0 0 30 2 *": errNever,
	} {
		if _, err := Parse(expression, ""); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", expression, err, want)
		}
	}
	if _, err := Parse("CRON_TZ=UTC * * * * *", "UTC"); !errors.Is(err, errZoneOnce) || !IsZoneError(err) {
		t.Errorf("two time zones: %v", err)
	}
}

// In local time, a run in the skipped hour happens an hour later, and a run in the repeated hour happens once, unless it
// is hourly.
func TestSummerTime(t *testing.T) {
	t.Parallel()
	r, err := Parse("30 2 * * *", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for at := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC); len(got) < 3; {
		at = r.Next(at)
		got = append(got, at.UTC().Format("01-02 15:04"))
	}
	if want := "03-29 01:30 03-30 00:30 03-31 00:30"; strings.Join(got, " ") != want {
		t.Errorf("in spring: %v, want %s", got, want)
	}
	got = nil
	for at := time.Date(2026, 10, 24, 12, 0, 0, 0, time.UTC); len(got) < 2; {
		at = r.Next(at)
		got = append(got, at.UTC().Format("01-02 15:04"))
	}
	if want := "10-25 00:30 10-26 01:30"; strings.Join(got, " ") != want {
		t.Errorf("in autumn: %v, want %s", got, want)
	}
	if r, err = Parse("30 * * * *", "Europe/Berlin"); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 10, 24, 23, 50, 0, 0, time.UTC)
	for hour := range 4 {
		if at = r.Next(at); at.UTC().Hour() != hour || at.Minute() != 30 {
			t.Errorf("every hour: %v", at)
		}
	}
}

// FuzzParse: due times of accepted expressions are at least a minute apart, and after the given time.
func FuzzParse(f *testing.F) {
	f.Add("*/5 * * * *", "", int64(1_700_000_000))
	f.Add("CRON_TZ=Europe/Berlin 30 2 29 2 SUN", "", int64(1_774_746_000))
	f.Add("0 0 1-31/2 1,3 1-7", "Asia/Kathmandu", int64(1))
	f.Fuzz(func(t *testing.T, expression, zone string, at int64) {
		r, err := Parse(expression, zone)
		if err != nil {
			return
		}
		from := time.Unix(at%4_000_000_000, 0)
		first := r.Next(from)
		second := r.Next(first)
		if first.IsZero() || second.IsZero() {
			return
		}
		if !first.After(from) || second.Sub(first) < time.Minute {
			t.Errorf("%q in %q after %v: %v, %v", expression, zone, from, first, second)
		}
	})
}

// Where a time zone skips a whole day, or midnight, the next due time is still found: a skipped day has no due times, and
// a run in a skipped hour happens an hour later. A clock that was never set does not cause a long search.
func TestDaysAndHoursThatAreLeftOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, zone, after, want string }{
		{"0 0 * * *", "Pacific/Apia", "2011-12-29 12:00", "2011-12-30 10:00"}, // the 30th does not exist there
		{"0 0 * * *", "Pacific/Apia", "2011-12-30 09:59", "2011-12-30 10:00"},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-01 00:00", "2012-12-29 22:00"},
		{"0 12 31 12 *", "Pacific/Fakaofo", "2011-12-01 00:00", "2011-12-30 23:00"},
		{"30 0 * * *", "America/Havana", "2026-03-07 12:00", "2026-03-08 05:30"},
		{"0 9 * * *", "Europe/Berlin", "1000-01-01 00:00", "1970-01-01 08:00"},
		{"0 0 30 12 *", "Pacific/Kwajalein", "0001-01-01 00:00", "1970-12-30 12:00"},
	} {
		r, err := Parse(c.cron, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		after, err := time.Parse("2006-01-02 15:04", c.after)
		if err != nil {
			t.Fatal(err)
		}
		found := make(chan time.Time, 1)
		go func() { found <- r.Next(after) }()
		select {
		case at := <-found:
			if got := at.UTC().Format("2006-01-02 15:04"); got != c.want {
				t.Errorf("%s in %s after %s: %s, want %s", c.cron, c.zone, c.after, got, c.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s in %s after %s: the search does not end", c.cron, c.zone, c.after)
		}
	}
}
