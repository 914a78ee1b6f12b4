package exchange_test

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/route"
)

// held is a resolver that keeps the lookups of a request waiting.
type held struct {
	route.Resolver
	asked, answer chan struct{}
}

func (h *held) Lookup(ctx context.Context, b *policy.Box, n name.Name) ([]netip.Addr, error) {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-h.answer
	return h.Resolver.Lookup(ctx, b, n)
}

// TestAttackSecretIsSentAfterItsRule: a request that has waited for a connection is not sent with what its rule has ceased to set.
func TestAttackSecretIsSentAfterItsRule(t *testing.T) {
	t.Parallel()
	rule := func(port uint16, value string) string {
		return `{"` + proxytest.HostPort(port) + `": {"headers": {"Authorization": "` + value + `"}}}`
	}
	for _, after := range []string{"Bearer new", "", "Bearer old"} { // the last one is no change
		t.Run(strconv.Quote(after), func(t *testing.T) {
			t.Parallel()
			proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
				l.Rules(proxytest.AllowAll, rule(port, "Bearer old"))
				slow := &held{l.Names, make(chan struct{}, 1), make(chan struct{})}
				type answer struct {
					status int
					err    error
				}
				answered := make(chan answer, 1)
				l.Resolver.Set(slow)
				go func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+proxytest.HostPort(port)+"/", http.NoBody)
					if err != nil {
						answered <- answer{err: err}
						return
					}
					res, err := client.Do(req)
					if err != nil {
						answered <- answer{err: err}
						return
					}
					_ = res.Body.Close()
					answered <- answer{status: res.StatusCode}
				}()
				<-slow.asked
				doc := `{"` + proxytest.HostPort(port) + `": {"headers": {"X-Other": "1"}}}`
				if after != "" {
					doc = rule(port, after)
				}
				l.Rules(proxytest.AllowAll, doc)
				l.Proxy.Recheck("box1")
				close(slow.answer)
				got := <-answered
				requests, _ := up.All()
				for _, r := range requests {
					if v := r.Header.Get("Authorization"); v != after {
						t.Fatalf("the server is sent %q under a rule with %q", v, after)
					}
				}
				if after != "Bearer old" {
					e := l.WantReason(name.ReasonSecretUnavailable)
					if e.Verdict != policy.Deny || e.Headers != nil || got.status != http.StatusBadGateway || !strings.Contains(e.Error, "the rule of the host has changed") {
						t.Errorf("it is answered %+v, and logged as %+v", got, e)
					}
				} else if got.status != 200 || len(requests) != 1 {
					t.Errorf("under an equal rule it is answered %+v", got)
				}
			})
		})
	}
}
