package policy

import (
	"slices"
	"testing"

	"boxgate/policy/name"
)

// TestScrubbingOfOtherPorts: what rules mask is masked on every port of their hosts, those of wildcards included.
func TestScrubbingOfOtherPorts(t *testing.T) {
	t.Parallel()
	c, err := Compile(Spec{Mode: ModeAllowAll}, Options{Version: 1, Headers: mustRules(t, `{
		"api.a.test": {"headers": {"X-Key": "exact-443"}, "scrub": true},
		"api.a.test:8443": {"headers": {"X-Key": "exact-8443"}},
		"*.a.test:9443": [
			{"match": {"methods": ["GET"]}, "headers": {"X-Key": "wild-9443"}, "scrub": true},
			{"headers": {"X-Key": "other-9443"}}],
		"open.a.test:9443": {"headers": {"X-Key": "exception"}},
		"b.test": {"headers": {"X-Key": "unscrubbed"}}}`), Protected: name.NewProtected(nil, nil)})
	if err != nil {
		t.Fatal(err)
	}
	exact, wild := []string{"exact-443"}, []string{"other-9443", "wild-9443"}
	all := append(slices.Clone(exact), wild...)
	for _, q := range []struct {
		host string
		port uint16
		want []string // nil: nothing is masked
		sent int
	}{
		{"api.a.test", 443, all, 1}, {"api.a.test", 8443, all, 1}, {"api.a.test", 9443, all, 1}, {"api.a.test", 1, all, 0},
		{"x.a.test", 443, wild, 0}, {"x.y.a.test", 1, wild, 0}, {"a.test", 443, nil, 0},
		{"open.a.test", 9443, nil, 1}, {"open.a.test", 1, nil, 0}, {"b.test", 443, nil, 1}, {"b.test", 1, nil, 0}, {"c.test", 443, nil, 0},
	} {
		hostName, err := name.Parse(q.host)
		if err != nil {
			t.Fatal(err)
		}
		rule, d := c.HeaderRule(Request{Stage: StageHTTP, Name: hostName, Port: q.port, Protocol: TCP, Method: "POST", Path: "/"})
		if d.Reason != "" || len(rule.Headers) != q.sent || rule.Scrub != (q.want != nil) {
			t.Errorf("%s:%d: %+v, %+v", q.host, q.port, rule, d)
		}
		for _, r := range []HeaderRule{rule, c.ScrubRule(hostName)} {
			var got []string
			if r.Shared != nil {
				for _, literal := range r.Shared.Literals {
					got = append(got, literal.Reveal())
				}
			}
			if slices.Sort(got); !slices.Equal(got, q.want) {
				t.Errorf("%s:%d: %q is masked, want %q", q.host, q.port, got, q.want)
			}
		}
		if clear := c.ScrubRule(hostName); len(clear.Headers) != 0 || clear.Scrub != (q.want != nil) {
			t.Errorf("%s in the clear: %+v", q.host, clear)
		}
	}
	if rule := (*Compiled)(nil).ScrubRule(name.Name{}); rule.Scrub {
		t.Error("no policy masks something")
	}
}
