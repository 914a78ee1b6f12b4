package attack

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The gateway calls the webhook of a schedule, and the kernel's rules do not apply to it: it must be judged like the
// box's traffic. It reaches neither a special address, in any spelling or behind any name, nor the gateway's own
// servers, nor a name that the policy denies, and follows no redirect there.
func TestAttackWebhook(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{Change: func(c *config.Config) {
		c.Admin.Listen, c.Metrics.Listen = "[::]:8600", "[::]:9600"
	}})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	for name, records := range map[string][]string{
		"private.example.com": {"A 169.254.169.254", "AAAA fd00:ec2::254"}, "loop.example.com": {"A 127.0.0.1", "AAAA ::1"},
	} {
		for i, r := range records {
			records[i] = name + ". 1 IN " + r
		}
		if err := w.Net.SetRecords(name, records...); err != nil {
			t.Fatal(err)
		}
	}
	box := w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"*.example.com"}, "allowed_cidrs": []string{"0.0.0.0/0", "::/0"}, "denied_domains": []string{"evil.example.net"}},
	})
	reasons := map[string]name.Reason{
		"http://169.254.169.254/latest/meta-data/": name.ReasonProtectedRange,
		"http://[fd00:ec2::254]/":                  name.ReasonProtectedRange,
		"http://[::ffff:169.254.169.254]/":         name.ReasonProtectedRange,
		"http://127.0.0.1:8600/v2/box":             name.ReasonProtectedRange,
		"http://[::1]:9600/metrics":                name.ReasonProtectedRange,
		"https://127.0.0.1:8600/":                  name.ReasonProtectedRange,
		"http://private.example.com/":              name.ReasonProtectedRange,
		"https://private.example.com/":             name.ReasonProtectedRange,
		"http://loop.example.com:8600/v2/box":      name.ReasonProtectedRange,
		"https://evil.example.net/":                name.ReasonDeniedDomain,
		"http://evil.example.net/":                 name.ReasonDeniedDomain,
	}
	var urls []string
	for link := range reasons {
		urls = append(urls, link)
	}
	urls = append(urls,
		"http://2852039166/", "http://localhost:8600/v2/box", "http://10.200.0.1:3128/", // not host names, and the proxy itself
		"https://www.example.com/redirect?to=http://169.254.169.254/", "https://www.example.com/redirect?to=https://evil.example.net/",
		"https://api.example.com/allowed",
	)
	for _, link := range urls {
		body := map[string]any{"type": "exec", "cron": "0 * * * *", "command": []string{"true"}, "webhook_url": link}
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "schedules"), body, nil); err != nil {
			t.Fatalf("%s: %v", link, err)
		}
	}
	w.ShiftClock(time.Hour)
	w.Until("all webhooks have been tried", func() bool {
		log := logOf(w, box)
		return strings.Count(log, "did not get the result")+strings.Count(log, " got the result") >= len(urls)
	})
	if log := logOf(w, box); strings.Count(log, "did not get the result") != len(urls)-1 {
		t.Errorf("%d webhooks, of which one is allowed: %s", len(urls), log)
	}
	if len(w.Net.Received("api.example.com", testnet.Path("/allowed"))) == 0 {
		t.Error("the allowed webhook got nothing: this test shows nothing")
	}
	for _, host := range []string{"169.254.169.254", "evil.example.net"} {
		w.NothingReached(host)
	}
	for link, reason := range reasons {
		to, err := url.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		w.Event(box, func(e audit.Event) bool {
			return e.Verdict == policy.Deny && e.Reason == reason && (strings.Contains(e.Name, to.Hostname()) || e.Addr.String() == strings.TrimPrefix(to.Hostname(), "::ffff:"))
		})
	}
}

// logOf returns the log of a box.
func logOf(w *harness.World, box string) string {
	w.T.Helper()
	var log struct{ Logs []struct{ Message string } }
	if err := w.Client.Do(w.T.Context(), "GET", api.BoxPath(box, "logs"), nil, &log); err != nil {
		w.T.Fatal(err)
	}
	var lines []string
	for _, l := range log.Logs {
		lines = append(lines, l.Message)
	}
	return strings.Join(lines, "\n")
}

// The webhook of a run is traffic of the box, like that of a schedule: it reaches neither the gateway's own servers nor
// hosts that the policy denies.
func TestAttackWebhookOfARun(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"), "agent": "custom",
		"custom_runner": map[string]any{"command": "sh", "args": []string{"-c", `printf 'event: done\ndata: {"output":"ok"}\n\n'`}, "protocol": "box-sse-v1"},
	})
	run := func(hook string) {
		body := map[string]any{"prompt": "go", "webhook": map[string]any{"url": hook, "headers": map[string]string{"X-Hook": "1"}}}
		if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "run"), body, nil); err != nil {
			t.Fatalf("%s: %v", hook, err)
		}
	}
	for hook, reason := range map[string]name.Reason{
		"http://127.0.0.1:8600/v2/box": name.ReasonProtectedRange, "http://169.254.169.254/": name.ReasonProtectedRange, "https://evil.example.net/": name.ReasonNotAllowed,
	} {
		run(hook)
		w.Event(box, func(e audit.Event) bool {
			return e.Verdict == policy.Deny && e.Reason == reason && (e.Name != "" && strings.Contains(hook, e.Name) || e.Addr.IsValid() && strings.Contains(hook, e.Addr.String()))
		})
	}
	run("https://api.example.com/hook")
	w.Until("the allowed webhook has come", func() bool { return len(w.Net.Received("api.example.com", testnet.Path("/hook"))) > 0 })
	w.NothingReached("evil.example.net")
}
