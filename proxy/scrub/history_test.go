package scrub

import (
	"fmt"
	"testing"
	"time"

	"boxgate/policy/name"
)

// TestHistoryIsBounded fills a history with hosts and secrets, and lets time pass.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var m History
	parse := func(text string) name.Name {
		hostName, err := name.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return hostName
	}
	now := time.Now()
	for i := range 3 * maxHosts {
		m.Set(parse(fmt.Sprint("api", i, ".example.com")), []string{"a secret"}, false, now.Add(time.Duration(i)))
	}
	if len(m.hosts) != maxHosts {
		t.Errorf("%d hosts", len(m.hosts))
	}
	host := parse("api.example.com")
	for i := range 5 * maxPast {
		m.Set(host, []string{fmt.Sprint("the secret number ", i, " of many")}, false, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(m.hosts[host].used); n != maxPast+1 {
		t.Errorf("%d secrets", n)
	}
	last := fmt.Sprint("the secret number ", 5*maxPast-2, " of many")
	for _, after := range []time.Duration{time.Minute, 2 * keepFor} { // texts that have expired by then stay forgotten
		masked := after < keepFor
		if got := m.Set(host, []string{"now in use"}, false, now.Add(5*maxPast*time.Second+after)).MaskString(last); (got != last) != masked {
			t.Errorf("%s later: %s", after, got)
		}
	}
	if m.Set(parse("other.example.com"), []string{}, false, now) != nil {
		t.Error("a set without secrets")
	}
}
