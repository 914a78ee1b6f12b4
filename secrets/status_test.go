package secrets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/policy/name"
)

// unused returns a secret that was read once, with the given lifetime, and a function that advances its clock.
func unused(t *testing.T, lifetime time.Duration) (*Secrets, *entry, func(time.Duration)) {
	t.Helper()
	s, err := Open(map[string]Source{"s": {Command: []string{"true"}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.flights.Wait() // the result does not matter
	var passed time.Duration
	start := s.now()
	s.now = func() moment { return start.add(passed) }
	e := s.entries["s"]
	e.load = func(context.Context, name.Secret) (readResult, error) {
		return readResult{value: name.NewSecret(canary), lifetime: lifetime}, nil
	}
	e.err, e.retryAt, e.failures = nil, moment{}, 0
	wants(t, s, "s", canary)
	return s, e, func(d time.Duration) { passed += d }
}

// expiry returns the metric of the secret's expiry; nil if missing.
func expiry(t *testing.T, s *Secrets) *float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "boxgate_secret_expiry_timestamp_seconds" {
			at := f.GetMetric()[0].GetGauge().GetValue()
			return &at
		}
	}
	return nil
}

// A secret that no request used for its refresh time is read again at the next use. Until then it counts neither as
// unavailable nor as about to expire.
func TestAnUnusedSecretIsNotUnavailable(t *testing.T) {
	t.Parallel()
	s, e, pass := unused(t, 0)
	if st := s.Status()[0]; !st.Valid || st.Stale || !st.Expires.IsZero() || expiry(t, s) != nil {
		t.Errorf("just read: %+v", st)
	}
	pass(time.Hour)
	if st := s.Status()[0]; !st.Valid || !st.Stale || !st.Expires.IsZero() || expiry(t, s) != nil {
		t.Errorf("an hour later: %+v", st)
	}
	e.load = func(context.Context, name.Secret) (readResult, error) { return readResult{}, errors.New("gone") }
	fails(t, s, "s")
	if st := s.Status()[0]; st.Valid || st.Stale || st.Err == nil {
		t.Errorf("its source fails: %+v", st)
	}
}

// The reported expiry is the source's, not the time of the next refresh.
func TestOnlyTheSourceSaysWhenASecretExpires(t *testing.T) {
	t.Parallel()
	s, e, pass := unused(t, time.Hour)
	e.source.Refresh = time.Minute
	read := s.now().wall
	if st := s.Status()[0]; !st.Valid || st.Expires.Sub(read) < 59*time.Minute || expiry(t, s) == nil {
		t.Errorf("just read: %+v, after %v", st, st.Expires.Sub(read))
	}
	pass(2 * time.Hour)
	if st := s.Status()[0]; !st.Valid || !st.Stale || expiry(t, s) != nil {
		t.Errorf("expired without being used: %+v", st)
	}
	e.load = func(context.Context, name.Secret) (readResult, error) { return readResult{}, errors.New("gone") }
	fails(t, s, "s")
	if st := s.Status()[0]; st.Valid || expiry(t, s) == nil {
		t.Errorf("expired, and its source fails: %+v", st)
	}
}

func TestRefreshesAreCounted(t *testing.T) {
	t.Parallel()
	s, _ := opened(t, map[string]Source{"good": {Value: name.NewSecret(canary)}, "bad": {File: "/nonexistent/file"}})
	wants(t, s, "good", canary)
	fails(t, s, "bad")
	fails(t, s, "unknown")
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() == "boxgate_secret_read_timestamp_seconds" {
			if m := f.GetMetric(); len(m) != 1 || m[0].GetLabel()[0].GetValue() != "good" || time.Since(time.Unix(int64(m[0].GetGauge().GetValue()), 0)) > time.Hour {
				t.Errorf("the times are %v", m)
			}
			continue
		}
		for _, m := range f.GetMetric() {
			got = append(got, fmt.Sprintf("%s{%s=%s} %v", f.GetName(), m.GetLabel()[0].GetName(), m.GetLabel()[0].GetValue(), m.GetCounter().GetValue()))
		}
	}
	want := `boxgate_secret_refresh_failures_total{secret=bad} 1
boxgate_secret_refresh_failures_total{secret=good} 0
boxgate_secret_refreshes_total{secret=bad} 1
boxgate_secret_refreshes_total{secret=good} 1`
	if strings.Join(got, "\n") != want {
		t.Errorf("the metrics are\n%s", strings.Join(got, "\n"))
	}
}
