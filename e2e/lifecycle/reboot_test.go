package lifecycle

import (
	"os"
	"path/filepath"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// TestBoxesSurviveAReboot restarts the host: boxes come back as paused, and start when they are used, with their files, their
// policy, their header rules, their CA, their URLs and their addresses.
func TestBoxesSurviveAReboot(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
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
	for range 2 { // the second time without having been used
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
	// What the gateway knows of a box is there without it.
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

// TestAttackFromTheFirstInstructionAfterAReboot has a box that is to be kept alive attack as soon as its first command runs: the
// gateway starts it by itself, and nothing is open before its policy is in force.
func TestAttackFromTheFirstInstructionAfterAReboot(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
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

// TestBoxWhoseFirstProcessDied is in state error, and starts again by resume.
func TestBoxWhoseFirstProcessDied(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
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
