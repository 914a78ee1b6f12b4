package runtimes

import (
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/launcher/oci"
)

// A snapshot of a running box has its files unchanged, with owners, modes and links. Boxes from it have these files,
// their own policy, and their own changes. The snapshot survives its box.
func TestSnapshotsUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com"), "env_vars": map[string]string{"STAGE": "test"}})
		const look = "stat -c %U:%a:%h file tree/script; readlink link; cat file; sha256sum < tree/big"
		w.MustSh(box, `echo kept > file; chmod 640 file; mkdir tree; head -c 3000000 /dev/urandom > tree/big; printf '#!/bin/sh\necho ran\n' > tree/script; chmod 750 tree/script
ln -s tree/big link; ln file second; echo gone > gone; rm gone; (while :; do date >> busy; sleep 0.05; done) >/dev/null 2>&1 &`)
		before := w.MustSh(box, look)
		snapshot := takeSnapshot(w, box)
		w.MustSh(box, "echo changed > file")
		w.MustDelete(box)

		var made [2]string
		for i := range made {
			made[i] = restored(w, snapshot)
			if after := w.MustSh(made[i], look); after != before {
				t.Errorf("a box from the snapshot has\n%s, not\n%s", after, before)
			}
			if out := w.MustSh(made[i], "tree/script; echo $STAGE; ls gone 2>/dev/null; true"); out != "ran\ntest\n" {
				t.Errorf("%q", out)
			}
			w.MustSh(made[i], "rm tree/script second; echo own > file")
		}
		if out, code := w.Sh(made[0], "curl -sS --max-time 60 http://plain.example.com/seen"); code != 0 || !strings.Contains(out, "GET /seen") {
			t.Errorf("its policy: %d %s", code, out)
		}
		if out, code := w.Sh(made[0], "curl -sS --max-time 60 https://evil.example.net/"); code != 35 {
			t.Errorf("a host that is not allowed: %d %s", code, out)
		}
		for _, b := range made {
			w.MustDelete(b)
		}
		nothingLeft(w, made[0])
		nothingLeft(w, made[1])
	})
}

// takeSnapshot takes a snapshot of a box and returns its ID.
func takeSnapshot(w *harness.World, box string) string {
	w.T.Helper()
	var s struct{ ID, Status, Error string }
	if err := w.Client.Do(w.T.Context(), "POST", api.BoxPath(box)+"/snapshots", map[string]any{"name": "s"}, &s); err != nil {
		w.T.Fatal(err)
	}
	w.Until("the snapshot is ready", func() bool {
		var list struct {
			Snapshots []struct{ ID, Status, Error string }
		}
		if err := w.Client.Get(w.T.Context(), api.BoxPath(box)+"/snapshots", &list); err != nil {
			w.T.Fatal(err)
		}
		for _, one := range list.Snapshots {
			if one.ID == s.ID && one.Status != "creating" {
				s.Status, s.Error = one.Status, one.Error
			}
		}
		return s.Status != "creating"
	})
	if s.Status != "ready" {
		w.T.Fatalf("%+v", s)
	}
	return s.ID
}

// restored creates a box from a snapshot.
func restored(w *harness.World, snapshot string) string {
	w.T.Helper()
	var box struct{ ID string }
	if err := w.Client.Do(w.T.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}, &box); err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = w.Client.Do(w.T.Context(), "DELETE", api.BoxPath(box.ID), nil, nil) })
	return box.ID
}

// After a restart of the host, a box starts again with its files and its policy.
func TestRebootUnderEachRuntime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *harness.World, _ *oci.Runtime) {
		box := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com")})
		w.MustSh(box, "echo kept > note; mkdir -m 700 own; rm -rf ~/.bashrc")
		w.Reboot()
		if err := w.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if out := w.MustSh(box, "cat note; stat -c %U:%a note own; curl -sS --max-time 60 http://plain.example.com/seen"); !strings.HasPrefix(out, "kept\nboxuser:644\nboxuser:700\n") || !strings.Contains(out, "GET /seen") {
			t.Errorf("after the restart: %q", out)
		}
		if _, code := w.Sh(box, "curl -sS --max-time 60 https://evil.example.net/"); code != 35 {
			t.Errorf("a host that is not allowed: %d", code)
		}
	})
}
