package fleet

import (
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCallsToSeveralHosts: boxes and snapshots of all hosts are deleted and listed by a call to any, and new boxes are made of snapshots of other
// hosts. With a mistake in the call nothing is deleted.
func TestCallsToSeveralHosts(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	boxes := []string{j.make(a, ""), j.make(b, "web"), j.make(c, "")}
	if resp, text := j.call(a, j.key, "DELETE", "/v2/box", map[string]any{"ids": append([]string{"none"}, boxes...)}); resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "nothing was deleted") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if states, silent := j.list(b); len(states) != 3 || silent != "" {
		t.Errorf("%v, silent: %q", states, silent)
	}
	j.must(c, 200, "POST", "/v2/box/web/exec", map[string]any{"command": []string{"sh", "-c", "echo kept > note"}})
	var snapshot struct{ ID string }
	text := j.must(a, 201, "POST", "/v2/box/web/snapshots", map[string]any{"name": "first"})
	if err := json.Unmarshal([]byte(text), &snapshot); err != nil || !strings.HasPrefix(snapshot.ID, "snap_"+b.id) {
		t.Fatal(text, err)
	}
	a.Until("the snapshot is ready", func() bool {
		return strings.Contains(j.must(c, 200, "GET", "/v2/box/snapshots", nil), `"status":"ready"`)
	})
	j.strange(a, b, boxes[1], snapshot.ID)
	text = j.must(a, 201, "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot.ID, "name": "copy"})
	if !strings.Contains(text, `"id":"`+b.id) {
		t.Errorf("the box of the snapshot: %s", text)
	}
	if text := j.must(c, 200, "POST", "/v2/box/copy/exec", map[string]any{"command": []string{"cat", "note"}}); !strings.Contains(text, "kept") {
		t.Errorf("its file: %s", text)
	}
	j.must(c, 200, "DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{snapshot.ID}})
	if text := j.must(a, 200, "GET", "/v2/box/snapshots", nil); strings.Contains(text, snapshot.ID) {
		t.Errorf("the snapshot is not deleted: %s", text)
	}
	var placed struct{ ID string }
	a.command(0, "", "fleet", "cordon", a.id)
	a.Until("the box is made on another host", func() bool {
		text := a.commandAs(j.key, "box", "create", "--placement", "spread", "--policy", "deny-all", "--json")
		if err := json.Unmarshal([]byte(text), &placed); err != nil {
			t.Fatal(text, err)
		}
		boxes = append(boxes, placed.ID)
		return !strings.HasPrefix(placed.ID, a.id)
	})
	text = j.must(a, 200, "DELETE", "/v2/box", map[string]any{"ids": append([]string{boxes[0], "web", "copy"}, boxes[2:]...)})
	for _, box := range boxes {
		if !strings.Contains(text, box) {
			t.Errorf("%s is not among the deleted: %s", box, text)
		}
	}
	for _, h := range j.hosts {
		if states, _ := j.list(h); len(states) != 0 {
			t.Errorf("boxes are left: %v", states)
		}
	}
}

// strange makes calls with keys of the fleet that do not see a box and a snapshot of host b, or may not change them.
func (j joined) strange(a, b *host, box, snapshot string) {
	j.t.Helper()
	for role, want := range map[string]int{"box-creator": http.StatusNotFound, "read-only": http.StatusForbidden} {
		var made struct{ Key string }
		if err := json.Unmarshal([]byte(j.must(a, 201, "POST", "/v2/api-keys", map[string]any{"name": role, "role": role})), &made); err != nil {
			j.t.Fatal(err)
		}
		b.Until("the other host knows the key", func() bool {
			resp, _ := j.call(b, made.Key, "GET", "/v2/box", nil)
			return resp.StatusCode == http.StatusOK
		})
		for _, c := range []struct {
			method, path string
			body         any
		}{
			{"DELETE", "/v2/box", map[string]any{"ids": []string{box}}},
			{"DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{snapshot}}},
			{"POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}},
		} {
			if resp, text := j.call(a, made.Key, c.method, c.path, c.body); resp.StatusCode != want {
				j.t.Errorf("%s: %s %s: %d %s", role, c.method, c.path, resp.StatusCode, text)
			}
		}
	}
}

// TestListsWithAHostThatHangs: the gateway of one host is stopped while it holds its lease. A list waits for it once, and then has its boxes from
// the directory soon; deletions that concern it delete nothing.
func TestListsWithAHostThatHangs(t *testing.T) {
	t.Parallel()
	j, a, b, c := three(t)
	own, other, far := j.make(a, ""), j.make(b, ""), j.make(c, "")
	a.Until("the directory has all boxes", func() bool {
		found, err := j.etcd.Client().Get(t.Context(), "/boxgate/test/boxes/"+c.id+"/"+far)
		return err == nil && len(found.Kvs) == 1
	})
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := c.Process.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	states, silent := j.list(a)
	if silent != c.id || states[far] != "unreachable" || states[own] == "" || states[other] == "" || states[other] == "unreachable" {
		t.Errorf("%v, silent: %q", states, silent)
	}
	began := time.Now()
	const times = 4
	for range times {
		if _, silent := j.list(a); silent != c.id {
			t.Errorf("silent: %q", silent)
		}
	}
	if took := time.Since(began); took > times*2500*time.Millisecond { // without its memory, each waits for three seconds
		t.Errorf("%d lists took %v", times, took)
	}
	if resp, text := j.call(a, j.key, "DELETE", "/v2/box", map[string]any{"ids": []string{own, other, far}}); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "host_unreachable") {
		t.Errorf("a deletion: %d %s", resp.StatusCode, text)
	}
	signal(syscall.SIGCONT)
	a.Until("the host is listed again, and nothing was deleted", func() bool {
		states, silent := j.list(a)
		return silent == "" && len(states) == 3 && states[far] != "unreachable"
	})
}
