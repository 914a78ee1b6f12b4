package lifecycle

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// TestBoxesSurviveAReboot restarts the host: boxes are paused afterwards and start on first use, with their files,
// policy, header rules, CA, URLs and addresses.
func TestBoxesSurviveAReboot(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.SecretBox()
	asleep := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}, "name": "asleep"})
	for _, b := range []string{box, asleep} {
		w.MustSh(b, "echo kept > file; mkdir .own; chmod 700 .own; mkdir dir; ln -s dir link")
	}
	ca := w.MustSh(box, "cat /usr/local/share/ca-certificates/* | sha256sum; stat -c %u:%g:%a file .own; hostname; ip -o addr show scope global")
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000, "bearer_token": true}, nil); err != nil {
		t.Fatal(err)
	}
	mustPost(w, asleep, "pause")
	for range 2 { // the second time without use in between
		w.Reboot()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, b := range []string{box, asleep} {
			if got := status(w, b); got != "paused" {
				t.Errorf("after the reboot it is %s", got)
			}
		}
	}
	// The gateway's record of a box is available while it is stopped.
	var decision struct{ Verdict string }
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "egress/explain"), map[string]any{"host": "api.example.com", "port": 443}, &decision); err != nil || decision.Verdict != "allow" {
		t.Errorf("explained: %+v %v", decision, err)
	}
	w.SetPolicy(asleep, harness.Custom("plain.example.com"))
	if got := status(w, asleep); got != "paused" {
		t.Errorf("after a change of its policy it is %s", got)
	}

	w.Net.Forget()
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com/after")
	seen := w.Net.Received("api.example.com", testnet.Path("/after"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		t.Errorf("after the reboot the server received %+v", seen)
	}
	if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
		t.Errorf("after the reboot curl exited with %d", code)
	}
	if after := w.MustSh(box, "cat /usr/local/share/ca-certificates/* | sha256sum; stat -c %u:%g:%a file .own; hostname; ip -o addr show scope global"); after != ca {
		t.Errorf("before the reboot\n%safter it\n%s", ca, after)
	}
	var urls struct{ Previews []any }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "preview"), &urls); err != nil || len(urls.Previews) != 1 {
		t.Errorf("its URLs: %+v %v", urls, err)
	}
	w.MustSh(asleep, "grep kept file && curl -sS -o /dev/null http://plain.example.com/")
	mustPost(w, asleep, "pause")
	w.MustSh(asleep, "true")
	w.NothingReached("evil.example.net")

	w.Reboot()
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.MustDelete(box)
	w.MustDelete(asleep)
	if left, err := filepath.Glob(filepath.Join(w.Dir, "state", "boxes", "*")); err != nil || len(left) != 0 {
		t.Errorf("left of deleted boxes: %v %v", left, err)
	}
}

// TestAttackFromTheFirstInstructionAfterAReboot: a box with keep-alive attacks from its first command on. The gateway
// starts it after a reboot, with no access before its policy is applied.
func TestAttackFromTheFirstInstructionAfterAReboot(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	evil := w.V4("evil.example.net").String()
	box := w.Create(map[string]any{"keep_alive": true, "network_policy": harness.Custom("api.example.com"), "init_command": `echo run >> runs
while :; do
  for i in 1 2 3 4 5 6 7 8; do (curl -k -s -m 2 -o /dev/null https://` + evil + `/; curl -s -m 2 -o /dev/null http://` + evil + `/; echo x > /dev/udp/` + evil + `/53) & done
  curl -k -s -m 2 -o /dev/null https://evil.example.net/; wait; echo tried >> tries
done`})
	tries := func() int {
		data, err := os.ReadFile(filepath.Join(w.Dir, "state", "boxes", box, "upper", "workspace", "home", "tries"))
		if err != nil {
			return 0
		}
		return len(data)
	}
	w.Until("it attacks", func() bool { return tries() > 0 })
	for range 2 {
		w.Reboot()
		before := tries()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.Until("it attacks again, without having been used", func() bool { return tries() > before })
		w.NothingReached("evil.example.net")
	}
	if runs := inHome(w, box, "runs"); runs != "run\nrun\nrun\n" {
		t.Errorf("its init command has run %q", runs)
	}
	w.MustSh(box, "curl -k -sS -o /dev/null https://api.example.com/")
}

// TestBoxWhoseFirstProcessDied: its state is error, and resume starts it again.
func TestBoxWhoseFirstProcessDied(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	for _, restart := range []bool{false, true} {
		box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
		w.MustSh(box, "echo kept > file")
		if restart {
			w.Kill()
		}
		init, err := os.FindProcess(w.InitOf(box))
		if err != nil {
			t.Fatal(err)
		}
		if err := init.Kill(); err != nil {
			t.Fatal(err)
		}
		if restart {
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.Until("it is in state error", func() bool {
			err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "exec"), map[string]any{"command": []string{"true"}}, nil)
			return err != nil && status(w, box) == "error"
		})
		mustPost(w, box, "resume")
		w.MustSh(box, "grep kept file && curl -k -sS -o /dev/null https://api.example.com/")
		if _, code := w.Sh(box, "curl -sS https://evil.example.net/"); code != 35 {
			t.Errorf("curl exited with %d", code)
		}
		if got := status(w, box); got != "idle" {
			t.Errorf("at the end it is %s", got)
		}
	}
}

// TestEphemeralBoxesEndOnTime: neither a pause nor a restart of the host changes the lifetime of an ephemeral box.
func TestEphemeralBoxesEndOnTime(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	long := w.Create(map[string]any{"ephemeral": true, "ttl": 3600})
	short := w.Create(map[string]any{"ephemeral": true, "ttl": 5})
	expires := func() (at int64) {
		var view struct {
			ExpiresAt int64 `json:"expires_at"`
		}
		if err := w.Client.Get(t.Context(), api.BoxPath(long), &view); err != nil || view.ExpiresAt == 0 {
			t.Fatalf("%+v %v", view, err)
		}
		return view.ExpiresAt
	}
	before := expires()
	mustPost(w, long, "pause")
	_ = post(w, short, "pause") // unless its time is over
	for range 2 {
		w.Reboot()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := expires(); got != before {
			t.Errorf("it was to end at %d, and now at %d", before, got)
		}
	}
	w.Until("the other has ended", func() bool {
		return !isListed(w, short)
	})
	w.MustSh(long, "true")
}

// isListed reports whether the API lists a box.
func isListed(w *harness.World, box string) bool {
	w.T.Helper()
	var boxes []struct{ ID string }
	if err := w.Client.Get(w.T.Context(), "/v2/box", &boxes); err != nil {
		w.T.Fatal(err)
	}
	for _, b := range boxes {
		if b.ID == box {
			return true
		}
	}
	return false
}

// TestUserIDsTakenDuringAReboot gives the user IDs of a box, whose claim a restart of the host removes, to another. The
// box reports this and is not started until they are free again.
func TestUserIDsTakenDuringAReboot(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	w.MustSh(box, "echo kept > file")
	claim := claimOf(w, box)
	w.Reboot()
	if err := errors.Join(os.Remove(claim), os.Symlink(t.TempDir(), claim)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(claim) })
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, call := range []func() error{
		func() error { return post(w, box, "resume") }, func() error { _, err := tryToUse(w, box); return err },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), "are those of another box now") {
			t.Errorf("the box whose user IDs are another's: %v", err)
		}
	}
	if got := status(w, box); got != "paused" {
		t.Errorf("it is %s", got)
	}
	if err := os.Remove(claim); err != nil {
		t.Fatal(err)
	}
	w.MustSh(box, "grep kept file; touch mine")
	if again := claimOf(w, box); again != claim {
		t.Errorf("its user IDs were %s and are %s", claim, again)
	}
}

// claimOf returns the link by which a box claims its user IDs.
func claimOf(w *harness.World, box string) string {
	w.T.Helper()
	claims, err := filepath.Glob("/run/boxgate-ids/*")
	if err != nil {
		w.T.Fatal(err)
	}
	for _, c := range claims {
		if owner, err := os.Readlink(c); err == nil && owner == filepath.Join(w.Dir, "state", "boxes", box) {
			return c
		}
	}
	w.T.Fatal("the box has claimed no user IDs")
	return ""
}

// TestSnapshotsAndReboots: a box made from a snapshot starts again on its layers, and a box can be captured before it
// is restarted.
func TestSnapshotsAndReboots(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	first := w.Create(map[string]any{})
	w.MustSh(first, "echo below > below; echo old > changed; echo x > removed")
	second := fromSnapshot(w, takeSnapshot(w, first, "one").ID, nil)
	w.MustSh(second, "echo above > above; echo new > changed; rm removed")
	w.MustDelete(first)
	const look = "cat below above changed; ls removed 2>/dev/null | wc -l"
	for range 2 {
		w.Reboot()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		third := fromSnapshot(w, takeSnapshot(w, second, "stopped").ID, nil)
		if got := status(w, second); got != "paused" {
			t.Errorf("the snapshot has left it %s", got)
		}
		for _, box := range []string{second, third} {
			if out := w.MustSh(box, look); out != "below\nabove\nnew\n0\n" {
				t.Errorf("after the reboot: %q", out)
			}
		}
		w.MustDelete(third)
	}
}
