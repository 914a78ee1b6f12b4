package ui

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/ui/preview"
)

// destination is a destination of a test.
func destination(t *testing.T, host, port string) preview.Destination {
	t.Helper()
	d, ps := preview.ParseDestination(host, port)
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	return d
}

// A preview tells how many of the denials so far an entry would open, which header rules cover it, and why it would open nothing. It
// changes nothing. The entry is made only for the version of the policy that was shown.
func TestPreviewOfAnEntry(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": map[string]any{"mode": "custom", "allowed_domains": []string{"api.example.com:443"}, "denied_domains": []string{"*.evil.example"}},
		"attach_headers": map[string]any{"files.example.net": map[string]string{"X-Key": "secret"}},
	})
	ctx := t.Context()
	for range 3 {
		w.Sh(box, "curl -sS --max-time 10 https://files.example.net/")
	}
	w.Sh(box, "curl -sS --max-time 10 https://cdn.example.org/")
	var a preview.Allowance
	w.Until("the denials are on record", func() (ok bool) {
		var err error
		if a, err = preview.Allow(ctx, w.Client, box, destination(t, "files.example.net", "443"), time.Hour); err != nil {
			t.Fatal(err)
		}
		return a.Replay.Traffic.Opens.Count >= 3 && a.Replay.Traffic.Denied.Count >= 1
	})
	said := strings.Join(preview.Outcome(&a.Replay), " ")
	want := fmt.Sprintf("Opens %d of the last %d denials.", a.Replay.Traffic.Opens.Count, a.Replay.Traffic.Opens.Count+a.Replay.Traffic.Denied.Count)
	if !strings.Contains(said, want) || a.Refused != "" || len(a.Headers) != 1 || a.Headers[0] != "files.example.net:443" || a.Retype() {
		t.Errorf("%q, header rules %q, %+v", said, a.Headers, a.Concerns)
	}
	if len(a.Replay.Authority.Gained) != 1 || preview.LineText(&a.Replay.Authority.Gained[0]) != "connections to files.example.net, port 443" {
		t.Errorf("authority %+v", a.Replay.Authority)
	}
	for host, why := range map[string]string{
		"api.example.com": "allows it already", "a.evil.example": "denied by", "127.0.0.1": "protected",
	} {
		got, err := preview.Allow(ctx, w.Client, box, destination(t, host, "443"), time.Hour)
		if err != nil || !strings.Contains(got.Refused, why) || got.Digest != "" {
			t.Errorf("%s: %q %v", host, got.Refused, err)
		}
	}
	w.SetPolicy(box, harness.Custom("api.example.com"))
	if err := a.Make(ctx, w.Client, box); !preview.Changed(err) {
		t.Errorf("made with another policy in force: %v", err)
	}
	again, err := preview.Allow(ctx, w.Client, box, destination(t, "files.example.net", "443"), 0)
	if err != nil || again.Same(a.Digest) {
		t.Errorf("the same preview of another policy: %v", err)
	}
	w.Lease(box, "allow", time.Hour, "other.example.net:443")
	again, err = preview.Allow(ctx, w.Client, box, destination(t, "files.example.net", "443"), 0)
	if err == nil {
		err = again.Make(ctx, w.Client, box)
	}
	now, readErr := preview.Read(ctx, w.Client, box)
	if err = errors.Join(err, readErr); err != nil || len(now.AllowedDomains) != 2 || now.AllowedDomains[1] != "files.example.net:443" || len(now.Leases) != 1 {
		t.Errorf("a permanent entry: %+v %v", now, err)
	}
}

// The check of a text has its problems at their pointers, and without problems the difference, the findings, and what must be
// confirmed; applying keeps temporary entries, and needs the version that was shown.
func TestPreviewOfAPolicy(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	ctx := t.Context()
	w.Lease(box, "allow", time.Hour, "files.example.net:443")
	now, err := preview.Read(ctx, w.Client, box)
	if err != nil {
		t.Fatal(err)
	}
	check := func(text string) preview.Change {
		t.Helper()
		ch, err := preview.Check(ctx, w.Client, box, text, now.Version, true)
		if err != nil {
			t.Fatal(err)
		}
		return ch
	}
	for text, at := range map[string]string{
		`{"mode": "custom", "allowed_domains": ["a.example", "b..example"]}`: "/allowed_domains/1",
		`{"mode": "open"}`:                                "/mode",
		`{"mode": "custom", "mode": "deny-all"}`:          "/mode",
		`{"mode": "custom", "allowed_domain": ["a.com"]}`: "/allowed_domain",
		`{"mode": "custom" "allowed_domains": ["a.com"]}`: "",
		`[1]`: "",
		``:    "",
	} {
		if ch := check(text); len(ch.Problems) == 0 || ch.Problems[0].Pointer != at || ch.Digest != "" {
			t.Errorf("%s: %+v", text, ch.Problems)
		}
	}
	if ch := check(now.Text()); !ch.Same || len(ch.Replay.Authority.Gained)+len(ch.Replay.Authority.Lost) != 0 || ch.Retype() {
		t.Errorf("the same text: %+v", ch)
	}
	wide := check(`{"mode": "custom", "allowed_domains": ["api.example.com", "*.com", "xn--exmple-cua.com"]}`)
	if !wide.Retype() || len(wide.Concerns) != 2 || len(wide.Diff) != 2 || len(wide.Lint) == 0 || wide.Lint[0].Pointer != "/allowed_domains/1" {
		t.Errorf("a wide policy: %+v %+v %+v", wide.Concerns, wide.Diff, wide.Lint)
	}
	if open := check(`{"mode": "allow-all"}`); !open.Retype() {
		t.Errorf("an open policy: %+v", open.Concerns)
	}
	good := check(`{"mode": "custom", "allowed_domains": ["api.example.com", "cdn.example.org:443"]}`)
	if good.Retype() || len(good.Replay.Authority.Gained) != 1 {
		t.Errorf("%+v %+v", good.Concerns, good.Replay.Authority)
	}
	if err := good.Apply(ctx, w.Client, box); err != nil {
		t.Fatal(err)
	}
	if err := good.Apply(ctx, w.Client, box); !preview.Changed(err) {
		t.Errorf("applied to another version: %v", err)
	}
	if now, err = preview.Read(ctx, w.Client, box); err != nil || len(now.AllowedDomains) != 2 || len(now.Leases) != 1 {
		t.Errorf("%+v %v", now, err)
	}
	if _, err := preview.Check(ctx, w.Client, box, now.Text(), now.Version-1, true); !preview.Changed(err) {
		t.Errorf("checked another version: %v", err)
	}
	if err := w.Client.Do(ctx, "PUT", "/v2/box/settings/network-policies/web", harness.Custom("api.example.com"), nil); err != nil {
		t.Fatal(err)
	}
	defer func() { // before the next test of the lab
		w.MustDelete(box)
		if err := w.Client.Do(ctx, "DELETE", "/v2/box/settings/network-policies/web", nil, nil); err != nil {
			t.Error(err)
		}
	}()
	if ch := check(`{"named": "web"}`); ch.Named != "web" || ch.Same || len(ch.Diff) != 1 || ch.Apply(ctx, w.Client, box) != nil {
		t.Errorf("a named policy: %+v", ch)
	}
	a, err := preview.Allow(ctx, w.Client, box, destination(t, "files.example.net", "443"), 0)
	if err != nil || !strings.Contains(a.Refused, "follows the named policy web") {
		t.Errorf("%q %v", a.Refused, err)
	}
	var refused *api.ResponseError
	if _, err := preview.Check(ctx, w.Client, "no-such-box", "{}", 1, true); !errors.As(err, &refused) || refused.Status != 404 {
		t.Errorf("no such box: %v", err)
	}
}
