package exchange_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// get sends a request, and returns its status and body.
func get(ctx context.Context, client *http.Client, url string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body := make([]byte, 1<<16)
	n, _ := res.Body.Read(body)
	return res.StatusCode, string(body[:n]), nil
}

// TestAttackRequestPastTheFence: from the moment at which the fence closes, no request is sent with values of the fleet, on connections that are
// open already too. After it opens they go on.
func TestAttackRequestPastTheFence(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		var closed atomic.Bool
		l.Fence = closed.Load
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": "canary"}}}`)
		url := "https://" + proxytest.HostPort(port) + "/"
		for i, shut := range []bool{false, true, true, false} {
			closed.Store(shut)
			before, _ := up.All()
			status, text, err := get(t.Context(), client, url)
			after, _ := up.All()
			switch {
			case err != nil:
				t.Fatal(err)
			case shut && (status != http.StatusBadGateway || !strings.Contains(text, `"fleet_fenced"`) || strings.Contains(text, "canary") || len(after) != len(before)):
				t.Errorf("%d: past the fence: %d %s; %d requests were sent", i, status, text, len(after)-len(before))
			case !shut && (status != http.StatusOK || len(after) != len(before)+1 || after[len(after)-1].Header.Get("X-Key") != "canary"):
				t.Errorf("%d: %d %s", i, status, text)
			}
		}
		if e := l.WantReason(name.ReasonFleetFenced); e.Verdict != policy.Deny || e.Headers != nil {
			t.Errorf("logged as %+v", e)
		}
	})
}

// TestAttackRequestWaitsForTheFence: a request that was judged before the fence closed, and then waits for a connection, is not sent.
func TestAttackRequestWaitsForTheFence(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		var closed atomic.Bool
		l.Fence = closed.Load
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": "canary"}}}`)
		slow := &held{l.Names, make(chan struct{}, 1), make(chan struct{})}
		l.Resolver.Set(slow)
		done := make(chan int, 1)
		go func() {
			status, _, err := get(t.Context(), client, "https://"+proxytest.HostPort(port)+"/")
			if err != nil {
				status = 0
			}
			done <- status
		}()
		<-slow.asked
		closed.Store(true)
		close(slow.answer)
		if status := <-done; status != http.StatusBadGateway {
			t.Errorf("answered %d", status)
		}
		if requests, _ := up.All(); len(requests) > 0 {
			t.Errorf("%d requests were sent past the fence", len(requests))
		}
		l.WantReason(name.ReasonFleetFenced)
	})
}

// closingSecrets closes the fence while a secret is fetched.
type closingSecrets struct{ closed *atomic.Bool }

func (s closingSecrets) Secret(context.Context, string) (name.Secret, error) {
	s.closed.Store(true)
	return name.NewSecret("canary"), nil
}

// TestAttackSecretOfTheFleetComesLate: the fence closes while a secret that a rule of the fleet names is fetched.
func TestAttackSecretOfTheFleetComesLate(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		var closed atomic.Bool
		l.Fence = closed.Load
		l.With(func(c *proxy.Config) { c.Secrets = closingSecrets{&closed} })
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "late"}}}}`)
		status, text, err := get(t.Context(), client, "https://"+proxytest.HostPort(port)+"/")
		if err != nil || status != http.StatusBadGateway || !strings.Contains(text, `"fleet_fenced"`) {
			t.Errorf("%d %s, %v", status, text, err)
		}
		if requests, _ := up.All(); len(requests) > 0 {
			t.Errorf("%d requests were sent past the fence", len(requests))
		}
	})
}
