package fleet

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/api"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// newKey makes an API key of the fleet. It returns the status of the answer with its text.
func (h *host) newKey(name string) (status int, text string) {
	h.T.Helper()
	err := h.Client.Do(h.T.Context(), "POST", "/v2/api-keys", map[string]any{"name": name, "role": "admin"}, nil)
	if refused := (*api.ResponseError)(nil); errors.As(err, &refused) {
		return refused.Status, refused.Error()
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return http.StatusOK, ""
}

// makesNamed tries to make a box with a name.
func (h *host) makesNamed(name string) (status int) {
	h.T.Helper()
	err := h.Client.Do(h.T.Context(), "POST", "/v2/box", map[string]any{"name": name, "network_policy": map[string]any{"mode": "deny-all"}}, nil)
	if refused := (*api.ResponseError)(nil); errors.As(err, &refused) {
		return refused.Status
	}
	if err != nil {
		h.T.Fatal(err)
	}
	return http.StatusOK
}

// goesOn uses and changes a box of this host, which needs no etcd.
func (h *host) goesOn(box, when string) {
	h.T.Helper()
	h.MustSh(box, "echo "+when)
	if err := h.Client.Do(h.T.Context(), "PUT", api.BoxPath(box, "config/network-policy"), map[string]any{"mode": "custom", "allowed_domains": []string{"www.example.com"}}, nil); err != nil {
		h.T.Errorf("a change of a policy, %s: %v", when, err)
	}
}

// TestEtcdAtItsQuota: while etcd has no room for writes (its alarm NOSPACE), changes of shared objects and claims of names are errors, also on
// another host, and take nothing. Leases go on, so no host is fenced, and boxes of the hosts are used, changed and deleted. After a compaction,
// defragmentation and the end of the alarm everything works.
func TestEtcdAtItsQuota(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	etcd := etcdtest.StartWith(t, "--quota-backend-bytes=4194304")
	a, b := two(t, etcd)
	box, _, _ := a.create()
	if status := a.makesNamed("before"); status != http.StatusOK {
		t.Fatal(status)
	}
	client := etcd.Client()
	var err error
	for i := 0; err == nil; i++ {
		_, err = client.Put(t.Context(), fmt.Sprint("filler/", i), strings.Repeat("x", 256<<10))
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatal(err)
	}
	for _, h := range []*host{a, b} {
		if status, text := h.newKey("full"); status != http.StatusServiceUnavailable {
			t.Errorf("a key: %d %s", status, text)
		}
		if status := h.makesNamed("full"); status != http.StatusServiceUnavailable {
			t.Errorf("a name: %d", status)
		}
	}
	a.goesOn(box, "at-the-quota")
	began := time.Now()
	a.Until("the hosts outlive the leases that they had", func() bool {
		for _, h := range []*host{a, b} {
			if own := h.command(0, "", "fleet", "status"); !strings.Contains(own, " is not fenced: ") {
				t.Fatalf("a host is fenced: %s", own)
			}
		}
		return time.Since(began) > ttl+ttl/3
	})
	if _, status, refusal := a.create(); status != http.StatusOK {
		t.Errorf("a box without a name: %s", refusal)
	}
	a.MustDelete("before") // its name is free before there is room
	at, err := client.Delete(t.Context(), "filler/", clientv3.WithPrefix())
	if err == nil {
		_, err = client.Compact(t.Context(), at.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = client.Defragment(t.Context(), etcd.Endpoint())
	}
	if err == nil {
		_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.Until("shared objects change again", func() bool { status, _ := b.newKey("later"); return status == http.StatusOK })
	b.Until("names are claimed again", func() bool { return b.makesNamed("full") == http.StatusOK })
	if status := b.makesNamed("before"); status != http.StatusOK {
		t.Errorf("the name of a box that was deleted meanwhile: %d", status)
	}
	a.goesOn(box, "with-room")
}

// TestEtcdOnAFullDisk: a server of etcd ends on a full disk. Changes of shared objects are errors, the host is fenced at the end of its lease, and its
// boxes go on. With room on the disk, etcd and the host take part again.
func TestEtcdOnAFullDisk(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	etcd := etcdtest.StartOnDisk(t, 160)
	a := newHost(t, etcd.Endpoint())
	a.become("", "fleet", "init")
	box, _, _ := a.create()
	free := etcd.FillDisk()
	client := etcd.Client()
	for i := 0; ; i++ { // until it needs a page that the disk does not have
		if _, err := client.Put(t.Context(), fmt.Sprint("filler/", i), strings.Repeat("x", 256<<10)); err != nil {
			break
		}
	}
	etcd.AwaitExit()
	if status, text := a.newKey("full"); status != http.StatusServiceUnavailable {
		t.Errorf("a key: %d %s", status, text)
	}
	a.Until("the host is fenced", func() bool { _, status, _ := a.create(); return status == http.StatusServiceUnavailable })
	a.goesOn(box, "without-etcd")
	free()
	etcd.Restart()
	a.Until("the host takes part again", func() bool { _, status, _ := a.create(); return status == http.StatusOK })
	a.Until("shared objects change again", func() bool { status, _ := a.newKey("later"); return status == http.StatusOK })
	a.goesOn(box, "with-room")
}

// TestMemberOfEtcdOnAFullDisk: one of three members of etcd ends on a full disk. The two others go on: no host is fenced, and shared objects, names
// and boxes change as before.
func TestMemberOfEtcdOnAFullDisk(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	cluster, fill := etcdtest.StartClusterOnDisk(t, 160)
	a := member(t, nil, cluster.Endpoints, nil)
	b := member(t, a, cluster.Endpoints, nil)
	box, _, _ := a.create()
	defer fill()()
	client, ended := cluster.Client(1, 2), false
	for i := 0; !ended; i++ {
		if _, err := client.Put(t.Context(), fmt.Sprint("filler/", i), strings.Repeat("x", 256<<10)); err != nil {
			t.Logf("a write: %v", err) // while another leader is elected
		}
		select {
		case <-cluster.Ended(0):
			ended = true
		default:
		}
	}
	for i, h := range []*host{a, b} {
		h.Until("shared objects change", func() bool { status, _ := h.newKey(fmt.Sprint("key-", i)); return status == http.StatusOK })
		h.Until("names are claimed", func() bool { return h.makesNamed(fmt.Sprint("name-", i)) == http.StatusOK })
		if own := h.command(0, "", "fleet", "status"); !strings.Contains(own, " is not fenced: ") {
			t.Errorf("a host is fenced: %s", own)
		}
	}
	a.goesOn(box, "with-two-members")
}
