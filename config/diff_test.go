package config

import (
	"slices"
	"strings"
	"testing"
)

// Each changed key is listed with both values, unless it is a secret.
func TestDiff(t *testing.T) {
	t.Parallel()
	read := func(text string) Config {
		t.Helper()
		cfg, err := Parse("boxgate.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	old := read("drain: 5m\nsecrets: {one: {value: first-secret}}\n")
	if d, err := Diff(old, old); err != nil || len(d) != 0 {
		t.Errorf("of the same: %v %v", d, err)
	}
	d, err := Diff(old, read("drain: 10m\ndns: {upstreams: [192.0.2.53]}\nsecrets: {one: {value: second-secret}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, one := range d {
		keys = append(keys, one.Key)
		if strings.Contains(one.String(), "-secret") {
			t.Errorf("it shows a secret: %v", one)
		}
	}
	if want := []string{"dns.upstreams", "drain", "secrets.one.value"}; !slices.Equal(keys, want) {
		t.Errorf("%q, want %q", keys, want)
	}
	if got := d[1].String(); got != "drain: 5m0s -> 10m0s" {
		t.Error(got)
	}
}
