package boxes

import (
	"encoding/json"
	"testing"
	"time"

	"boxgate/api"
)

// TestLifetimesInBodies: each body gives one end, or is refused.
func TestLifetimesInBodies(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]api.Lifetime{
		`{"ttl":1}`: {TTL: time.Second}, `{"ttl":259200}`: {TTL: api.MaxTTL}, `{"extend":60}`: {Extend: time.Minute}, `{"ttl":null}`: {Unlimited: true}, ` {"ttl" : null } `: {Unlimited: true},
	} {
		if got, err := lifetimeOf([]byte(body)); err != nil || got != want {
			t.Errorf("%s: %+v %v", body, got, err)
		}
	}
	for _, body := range []string{
		`{}`, `null`, `[]`, `"ttl"`, `{"ttl":0}`, `{"ttl":-1}`, `{"ttl":259201}`, `{"ttl":1.5}`, `{"ttl":"1"}`, `{"ttl":1,"extend":1}`, `{"ttl":null,"extend":1}`, `{"extend":null}`, `{"extend":0}`,
		`{"ttl":1,"ttl":null}`, `{"ttl":null,"ttl":1}`, `{"ttl":null,"ttl":null}`, `{"TTL":null}`, `{"TTL":1}`, `{"ttl":9223372036854775807}`, `{"ttl":1,"more":1}`, `{"ttl":null}{}`, `{"ttl"`,
	} {
		if got, err := lifetimeOf([]byte(body)); err == nil {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

// FuzzLifetime: a body that is accepted gives exactly one end, within the limit, and only null removes it.
func FuzzLifetime(f *testing.F) {
	for _, body := range []string{`{"ttl":1}`, `{"extend":3600}`, `{"ttl":null}`, `{"ttl":1,"extend":2}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		set, err := lifetimeOf(body)
		if err != nil {
			return
		}
		given, members := 0, map[string]*json.Number{}
		for _, d := range []time.Duration{set.TTL, set.Extend} {
			if d != 0 {
				given++
			}
			if d < 0 || d > api.MaxTTL {
				t.Errorf("%s: %v", body, d)
			}
		}
		if err := json.Unmarshal(body, &members); err != nil || set.Unlimited != (members["ttl"] == nil && len(members) == 1 && given == 0) || !set.Unlimited && given != 1 {
			t.Errorf("%s: %+v %v", body, set, err)
		}
	})
}
