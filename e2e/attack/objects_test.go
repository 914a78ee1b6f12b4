package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// weak creates an API key and returns a client that uses it.
func weak(t *testing.T, w *harness.World, body map[string]any) *api.Client {
	t.Helper()
	var made struct{ Key string }
	if err := w.Client.Do(t.Context(), "POST", "/v2/api-keys", body, &made); err != nil {
		t.Fatal(err)
	}
	return api.NewClient(w.Socket, made.Key)
}

// assertOverQuota requires that a call is refused with 429 for a quota.
func assertOverQuota(t *testing.T, what, quota string, err error) {
	t.Helper()
	refused, ok := errors.AsType[*api.ResponseError](err)
	if !ok || refused.Status != 429 || !strings.Contains(refused.Message, "(quotas."+quota+")") {
		t.Errorf("%s: %v; want 429 for %s", what, err, quota)
	}
}

// A key cannot create more objects of any kind than its quota, by any endpoint. It can replace deleted ones. Other keys
// and the operator are not affected, and the count survives a restart of the gateway.
func TestAKeyHasNoMoreObjectsThanItMay(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Quotas.Boxes, c.Quotas.Snapshots, c.Quotas.URLs, c.Quotas.Domains, c.Quotas.Schedules, c.Quotas.Secrets = 3, 2, 2, 2, 2, 2
	})
	ci, other := weak(t, w, map[string]any{"name": "ci", "role": "box-creator"}), weak(t, w, map[string]any{"name": "other", "role": "box-creator"})
	made := func(by *api.Client, path string, body map[string]any) (id string, err error) {
		var view struct{ ID string }
		err = by.Do(t.Context(), "POST", path, body, &view)
		return view.ID, err
	}
	must := func(by *api.Client, path string, body map[string]any) string {
		t.Helper()
		id, err := made(by, path, body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return id
	}
	const snapshots, preview, schedules = "snapshots", "preview", "schedules"
	job := map[string]any{"type": "exec", "cron": "0 0 1 1 *", "command": []string{"true"}}
	box := must(ci, "/v2/box", map[string]any{})
	first := must(ci, api.BoxPath(box, snapshots), map[string]any{})
	copied := must(ci, "/v2/box/from-snapshot", map[string]any{"snapshot_id": first})
	must(ci, api.BoxPath(copied, snapshots), map[string]any{})
	third := must(ci, "/v2/box", map[string]any{})
	must(ci, api.BoxPath(box, preview), map[string]any{"port": 8000, "hostnames": []string{"a.example.org", "b.example.org"}})
	must(ci, api.BoxPath(third, preview), map[string]any{"port": 8000})
	schedule := must(ci, api.BoxPath(box, schedules), job)
	must(ci, api.BoxPath(third, schedules), job)
	secret := func(n string) map[string]any { return map[string]any{"name": n, "value": "value-of-" + n} }
	must(ci, keySecrets, secret("a"))
	must(ci, keySecrets, secret("b"))
	full := func() {
		t.Helper()
		refused := func(what, quota, path string, body map[string]any) {
			t.Helper()
			_, err := made(ci, path, body)
			assertOverQuota(t, what, quota, err)
		}
		refused("a box", "boxes", "/v2/box", map[string]any{})
		refused("a box of a snapshot", "boxes", "/v2/box/from-snapshot", map[string]any{"snapshot_id": first})
		refused("a snapshot", "snapshots", api.BoxPath(third, snapshots), map[string]any{})
		refused("a URL", "urls", api.BoxPath(third, preview), map[string]any{"port": 8001})
		assertOverQuota(t, "shared ports", "urls", ci.Do(t.Context(), "PUT", api.BoxPath(third, "config/ports"), map[string]any{}, nil))
		refused("a domain in place of none", "domains", api.BoxPath(third, preview), map[string]any{"port": 8000, "hostnames": []string{"c.example.org"}})
		refused("a schedule", "schedules", api.BoxPath(third, schedules), job)
		refused("a secret", "secrets", keySecrets, secret("c"))
	}
	full()
	must(ci, api.BoxPath(box, preview), map[string]any{"port": 8000, "hostnames": []string{"a.example.org", "c.example.org"}}) // replaces its own URL
	for name, by := range map[string]*api.Client{"another": other, "the operator": w.Client} {
		id := must(by, "/v2/box", map[string]any{})
		must(by, api.BoxPath(id, preview), map[string]any{"port": 8000, "hostnames": []string{strings.ReplaceAll(name, " ", "-") + ".example.org"}})
		must(by, api.BoxPath(id, schedules), job)
		must(by, api.BoxPath(id, snapshots), map[string]any{})
		must(by, keySecrets, secret("a"))
	}
	one := weak(t, w, map[string]any{"name": "one", "role": "one-box", "box": box}) // its objects are its own
	must(one, api.BoxPath(box, preview), map[string]any{"port": 9000})
	must(one, api.BoxPath(box, schedules), job)
	w.Kill()
	w.StartIfStopped()
	full()
	var keys struct {
		Keys []struct {
			ID, Name string
			Use      map[string]struct{ Used, Limit int64 }
		} `json:"api_keys"`
	}
	var keyID string
	w.Until("the list of keys has what they hold", func() bool {
		if err := w.Client.Get(t.Context(), "/v2/api-keys", &keys); err != nil {
			t.Fatal(err)
		}
		for _, k := range keys.Keys {
			if k.Name == "ci" {
				u := k.Use
				keyID = k.ID
				return u["boxes"].Used == 3 && u["snapshots"].Used == 2 && u["urls"].Used == 2 && u["domains"].Used == 2 && u["schedules"].Used == 2 && u["secrets"].Used == 2
			}
		}
		return false
	})
	w.Until("the metrics show it", func() bool { return w.Metric(`boxgate_quota_used{key="`+keyID+`",quota="boxes"}`) == 3 })
	for _, path := range []string{api.BoxPath(copied), api.BoxPath(box, snapshots, first), api.BoxPath(third, preview, "8000"), api.BoxPath(box, schedules, schedule), keySecrets + "/a"} {
		if err := ci.Do(t.Context(), "DELETE", path, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	gone := api.BoxPath(copied, snapshots) // snapshots of a deleted box still count, and the key may use and delete them
	var left struct{ Snapshots []struct{ ID string } }
	if err := ci.Get(t.Context(), gone, &left); err != nil || len(left.Snapshots) != 1 {
		t.Fatalf("%v %+v", err, left)
	}
	must(ci, "/v2/box/from-snapshot", map[string]any{"snapshot_id": left.Snapshots[0].ID})
	for who, by := range map[string]*api.Client{"another key": other, "a key of one box": one} {
		if by.Get(t.Context(), gone, nil) == nil || by.Do(t.Context(), "DELETE", gone+"/"+left.Snapshots[0].ID, nil, nil) == nil {
			t.Errorf("%s sees a snapshot of a box that is gone", who)
		}
		if _, err := made(by, "/v2/box/from-snapshot", map[string]any{"snapshot_id": left.Snapshots[0].ID}); err == nil {
			t.Errorf("%s makes a box of it", who)
		}
	}
	must(ci, api.BoxPath(third, snapshots), map[string]any{})
	_, err := made(ci, api.BoxPath(third, snapshots), map[string]any{})
	assertOverQuota(t, "a third snapshot", "snapshots", err)
	if err := ci.Do(t.Context(), "DELETE", gone+"/"+left.Snapshots[0].ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	must(ci, api.BoxPath(third, snapshots), map[string]any{})
	must(ci, api.BoxPath(third, preview), map[string]any{"port": 8001})
	must(ci, api.BoxPath(third, schedules), job)
	must(ci, keySecrets, secret("c"))
}

// keySecrets is the path of the secrets of API keys.
const keySecrets = "/v2/key-secrets"

// A key cannot fill the disk with snapshots: their size is bounded while they are written, even when several are taken
// concurrently. Later ones are refused immediately.
func TestAttackOnTheDiskBySnapshots(t *testing.T) {
	t.Parallel()
	const most, each = 48 << 20, 20 << 20
	w := harness.NewWorld(t, func(c *config.Config) { c.Quotas.SnapshotBytes = most })
	ci := weak(t, w, map[string]any{"name": "ci", "role": "box-creator"})
	var boxes []string
	for range 3 {
		var box struct{ ID string }
		if err := ci.Do(t.Context(), "POST", "/v2/box", map[string]any{}, &box); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, box.ID)
		w.MustSh(box.ID, fmt.Sprintf("head -c %d /dev/urandom >blob", each))
	}
	answers := make(chan error, 6)
	for i := range cap(answers) {
		go func() {
			answers <- ci.Do(t.Context(), "POST", api.BoxPath(boxes[i%3], "snapshots"), map[string]any{}, nil)
		}()
	}
	for range cap(answers) {
		if err := <-answers; err != nil {
			assertOverQuota(t, "a snapshot", "snapshot_bytes", err)
		}
	}
	ready := func() (n int) {
		t.Helper()
		w.Until("no snapshot is being taken", func() bool {
			n = 0
			for _, box := range boxes {
				var list struct {
					Snapshots []struct{ Status, Error string }
				}
				if err := w.Client.Get(t.Context(), api.BoxPath(box, "snapshots"), &list); err != nil {
					t.Fatal(err)
				}
				for _, s := range list.Snapshots {
					switch {
					case s.Status == "creating":
						return false
					case s.Status == "ready":
						n++
					case !strings.Contains(s.Error, "(quotas.snapshot_bytes)"):
						t.Errorf("%+v", s)
					}
				}
			}
			return true
		})
		return n
	}
	for n, tries := ready(), 0; n < 2 && tries < 2; tries++ { // concurrent snapshots may have left no space for each other
		if err := ci.Do(t.Context(), "POST", api.BoxPath(boxes[0], "snapshots"), map[string]any{}, nil); err != nil {
			t.Error(err)
		}
		n = ready()
	}
	if n := ready(); n != 2 {
		t.Errorf("%d snapshots of %d bytes within %d", n, each, most)
	}
	w.Until("what those have written that failed is gone", func() bool { return treeSize(t, w.Dir+"/state/layers") < most })
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(boxes[0], "snapshots"), map[string]any{}, nil); err != nil {
		t.Errorf("the operator's snapshot: %v", err)
	}
}

// treeSize returns the disk space used by the files below a directory.
func treeSize(t *testing.T, dir string) (sum int64) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil { // otherwise it is being removed
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum
}
