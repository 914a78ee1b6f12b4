package secrets

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/policy/name"
)

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
