package secrets

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// responseError returns the API's refusal in an error, or nil.
func responseError(err error) *api.ResponseError {
	refused, _ := errors.AsType[*api.ResponseError](err)
	return refused
}

// secretArrives fails the test unless the box's request carries the secret of its rule.
func secretArrives(w *harness.World, box, path string) {
	w.T.Helper()
	w.MustSh(box, "curl -sS -o /dev/null https://api.example.com"+path)
	seen := w.Net.Received("api.example.com", testnet.Path(path))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+harness.TestSecret {
		w.T.Errorf("%s: the server received %+v", path, seen)
	}
}

// TestTheKeyOfTheStoreIsChanged: by the running gateway and without one. Boxes and their secrets stay.
func TestTheKeyOfTheStoreIsChanged(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	box := w.SecretBox()
	first := w.KeyFile("secret.key")
	harness.Contains(t, w.Run(0, nil, "", "store", "rotate-key"), "secret.key", "Update your backup")
	second := w.KeyFile("secret.key")
	if second == first || strings.Count(second, "AGE-SECRET-KEY-1") != 1 {
		t.Error("the key file was not changed")
	}
	secretArrives(w, box, "/while-it-runs")
	harness.Contains(t, w.Run(1, nil, "", "store", "rotate-key", "--admin", w.Socket, "--passphrase-stdin"), "no new passphrase")
	harness.Contains(t, w.Run(1, []string{config.NewPassphraseVariable + "=correct horse"}, "", "store", "rotate-key"), "key file")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if out := w.Run(0, nil, "", "store", "rotate-key", "--json"); strings.TrimSpace(out) != `{"ok":true}` {
		t.Errorf("answered %q", out)
	}
	third := w.KeyFile("secret.key")
	if third == second {
		t.Error("the key file was not changed without a gateway")
	}
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	secretArrives(w, box, "/after-a-start")
	for _, key := range []string{first, second, third} {
		for _, line := range strings.Split(key, "\n") {
			if strings.HasPrefix(line, "AGE-SECRET") && strings.Contains(w.LogText(), line) {
				t.Error("the log shows a key")
			}
		}
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.Dir, "state", "secret.key"), []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "not the key") {
		t.Errorf("with the first key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(w.Dir, "state", "secret.key"), []byte(third), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestThePassphraseOfTheStoreIsChanged: by a variable through the gateway, and from standard input without one.
func TestThePassphraseOfTheStoreIsChanged(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	start := func(passphrase string) error {
		w.Env = []string{config.PassphraseVariable + "=" + passphrase}
		return w.Start(t.Context())
	}
	if err := start("first passphrase"); err != nil {
		t.Fatal(err)
	}
	box := w.SecretBox()
	harness.Contains(t, w.Run(1, []string{config.NewPassphraseVariable + "=short"}, "", "store", "rotate-key"), "too short")
	harness.Contains(t, w.Run(1, nil, "", "store", "rotate-key"), "give a new one")
	harness.Contains(t, w.Run(0, []string{config.NewPassphraseVariable + "=second passphrase"}, "", "store", "rotate-key"), config.PassphraseVariable)
	secretArrives(w, box, "/while-it-runs")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := start("first passphrase"); err == nil {
		t.Fatal("the first passphrase opens the store")
	}
	w.Kill()
	harness.Contains(t, w.Run(1, nil, "third passphrase\n", "store", "rotate-key", "--passphrase-stdin"), config.PassphraseVariable)
	w.Run(0, []string{config.PassphraseVariable + "=second passphrase"}, "third passphrase\n", "store", "rotate-key", "--passphrase-stdin")
	if err := start("third passphrase"); err != nil {
		t.Fatal(err)
	}
	secretArrives(w, box, "/after-a-start")
	for _, p := range []string{"first", "second", "third"} {
		if file := fileWith(t, filepath.Join(w.Dir, "state"), []byte(p+" passphrase")); file != "" || strings.Contains(w.LogText(), p+" passphrase") {
			t.Errorf("the %s passphrase is in %q or in the log", p, file)
		}
	}
}

// TestTheAPIKeyIsChanged: the previous key stops working immediately or after the grace period, also on open
// connections.
func TestTheAPIKeyIsChanged(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	ask := func(c *api.Client) int {
		err := c.Get(t.Context(), "/v2/box", nil)
		if refused := responseError(err); refused != nil {
			return refused.Status
		}
		if err != nil {
			t.Error(err)
		}
		return http.StatusOK
	}
	fresh := func() *api.Client {
		c, err := w.Dial()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, firstKey := w.Client, w.KeyFile("api-key")
	stream := make(chan error, 1)
	go func() {
		stream <- first.Lines(t.Context(), "/v2/egress?follow=true", func([]byte) error { return nil })
	}()
	out := w.Run(0, nil, "", "api-key", "rotate", "--grace", "1h")
	second := fresh()
	if w.KeyFile("api-key") == firstKey || strings.Contains(out, strings.TrimSpace(w.KeyFile("api-key"))) {
		t.Errorf("the key was not changed, or is shown: %s", out)
	}
	if a, b := ask(first), ask(second); a != 200 || b != 200 {
		t.Errorf("within the grace: %d, %d", a, b)
	}
	w.Run(0, nil, "", "api-key", "rotate")
	third := fresh()
	if a, b, c := ask(first), ask(second), ask(third); a != 401 || b != 401 || c != 200 {
		t.Errorf("after the rotation: %d, %d, %d", a, b, c)
	}
	if err := <-stream; err != nil {
		t.Logf("the stream of the first key ended with %v", err)
	}
	w.Client = third
	w.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	w.Run(0, nil, "", "api-key", "rotate")
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := ask(third), ask(w.Client); a != 401 || b != 200 {
		t.Errorf("after one without a gateway: %d, %d", a, b)
	}
	w.Run(2, nil, "", "api-key", "rotate", "--grace", "-1h")
	empty := filepath.Join(t.TempDir(), "state")
	harness.Contains(t, w.Run(1, []string{"BOXGATE_STATE_DIR=" + empty}, "", "api-key", "rotate"), "there is no store in")
	if _, err := os.Stat(empty); err == nil {
		t.Error("a store was made")
	}
}

// TestTheGatewayCannotBeDumped: the running gateway writes no core, and a process without CAP_SYS_PTRACE but with the
// same user and other privileges cannot open its memory.
func TestTheGatewayCannotBeDumped(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	// A process with a capability that the reader lacks is out of its reach anyway, so both drop it.
	drop := []string{"--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"}
	script := filepath.Join(t.TempDir(), "gateway")
	text := fmt.Sprintf("#!/bin/sh\nexec setpriv %s %s \"$@\"\n", strings.Join(drop, " "), w.Self)
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	w.Self = script
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := w.Process.Process.Pid
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max core file size 0 0 bytes") {
		t.Errorf("%v %s", err, limits)
	}
	memory := func(pid int) string { // the error on opening; no memory is mapped at address 0
		out, _ := harness.ExecDetached("setpriv", append(drop, "head", "-c1", fmt.Sprintf("/proc/%d/mem", pid))...).CombinedOutput()
		return string(out)
	}
	other := harness.ExecDetached("setpriv", append(drop, "sleep", "1000")...)
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Wait() }()
	defer func() { _ = other.Process.Kill() }()
	w.Until("another process can be read", func() bool { return strings.Contains(memory(other.Process.Pid), "Input/output error") })
	if out := memory(pid); !strings.Contains(out, "Permission denied") {
		t.Errorf("reading the gateway's memory: %s", out)
	}
}
