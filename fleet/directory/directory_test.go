package directory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/member"
)

var keys = fleet.KeysOf("test")

// host returns the directory for a host with a lease.
func host(t *testing.T, c *clientv3.Client, id string) (Directory, *member.Session) {
	t.Helper()
	const founding = "0123456789abcdef"
	key := []byte("fingerprint")
	write(t, c, keys.Founding(), fleet.Founding{ID: founding, Protocol: fleet.Protocol})
	write(t, c, keys.Host(id), fleet.Host{ID: id, Protocol: fleet.Protocol, Key: key})
	s, err := member.New(member.Config{Client: c, Keys: keys, Host: id, Founding: founding, Key: key, Presence: fleet.Presence{Instance: id}, TTL: time.Minute, Log: zap.NewNop()})
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return Directory{Client: c, Keys: keys, Host: id, Guard: s.Guard}, s
}

func write(t *testing.T, c *clientv3.Client, at string, record any) {
	t.Helper()
	text, err := fleet.Encode(record)
	if err == nil {
		_, err = c.Put(t.Context(), at, text)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, d Directory, box, name string, labels ...string) {
	t.Helper()
	if err := d.Put(t.Context(), box, Entry{name, labels}); err != nil {
		t.Fatal(err)
	}
}

func owner(t *testing.T, d Directory, name string) string {
	t.Helper()
	o, _, err := d.Find(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return o.Box
}

// TestNames: a name belongs to one box of the fleet until the box gets another or is removed.
func TestNames(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	a, _ := host(t, c, "aaaaaa")
	b, _ := host(t, c, "bbbbbb")
	put(t, a, "a1", "web", "team=x")
	put(t, a, "a2", "")
	if err := b.Put(t.Context(), "b1", Entry{Name: "web"}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("on another host: %v", err)
	}
	if err := a.Put(t.Context(), "a2", Entry{Name: "web"}); !errors.Is(err, ErrNameTaken) {
		t.Errorf("on the same host: %v", err)
	}
	if boxes, err := a.Boxes(t.Context(), "bbbbbb"); err != nil || len(boxes) != 0 {
		t.Errorf("a refused box is in the directory: %v, %v", boxes, err)
	}
	put(t, a, "a1", "web", "team=y")
	put(t, a, "a1", "api")
	put(t, b, "b1", "web")
	if owner(t, b, "api") != "a1" || owner(t, a, "web") != "b1" {
		t.Errorf("api: %s, web: %s", owner(t, b, "api"), owner(t, a, "web"))
	}
	if err := a.Remove(t.Context(), "a1"); err != nil {
		t.Fatal(err)
	}
	if err := a.Remove(t.Context(), "a1"); err != nil || owner(t, a, "api") != "" || owner(t, a, "web") != "b1" {
		t.Errorf("%v, api: %s, web: %s", err, owner(t, a, "api"), owner(t, a, "web"))
	}
	put(t, a, "a3", "../../watched/hosts/x")
	if owner(t, b, "../../watched/hosts/x") != "a3" {
		t.Error("a name with slashes is not found")
	}
	if all, err := c.Get(t.Context(), keys.Watched(), clientv3.WithPrefix(), clientv3.WithKeysOnly()); err != nil || len(all.Kvs) != 2 {
		t.Errorf("%d watched keys, %v", len(all.Kvs), err)
	}
}

// TestOneNameManyHosts: of many boxes that claim a name at the same time, one gets it.
func TestOneNameManyHosts(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		d, _ := host(t, c, fmt.Sprintf("%06x", i%4))
		wg.Go(func() { errs[i] = d.Put(t.Context(), fmt.Sprint("box", i), Entry{Name: "web"}) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, ErrNameTaken) && !errors.Is(err, ErrFenced): // a later session of the same host has the lease
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d boxes have the name", won)
	}
}

// TestWithoutLease: a host whose lease has ended, or was taken over, changes nothing.
func TestWithoutLease(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	a, session := host(t, c, "aaaaaa")
	put(t, a, "a1", "web")
	session.Close()
	if err := a.Put(t.Context(), "a2", Entry{Name: "api"}); !errors.Is(err, ErrFenced) {
		t.Errorf("a claim: %v", err)
	}
	if err := a.Remove(t.Context(), "a1"); !errors.Is(err, ErrFenced) || owner(t, a, "web") != "a1" {
		t.Errorf("a removal: %v", err)
	}
	next, _ := host(t, c, "aaaaaa")
	if err := a.Put(t.Context(), "a2", Entry{Name: "api"}); !errors.Is(err, ErrFenced) {
		t.Errorf("a claim by the process before: %v", err)
	}
	put(t, next, "a2", "api")
}

// TestLateChanges: after a host has begun anew, changes that it sent before are not made, whenever they arrive.
func TestLateChanges(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	late, session := host(t, c, "aaaaaa")
	put(t, late, "a1", "web")
	d := late
	for range 2 {
		var err error
		if d.Epoch, err = d.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := late.Put(t.Context(), "a2", Entry{Name: "api"}); !errors.Is(err, ErrSuperseded) || owner(t, d, "api") != "" {
			t.Errorf("a new box: %v", err)
		}
		if err := late.Put(t.Context(), "a1", Entry{Name: "shop"}); !errors.Is(err, ErrSuperseded) || owner(t, d, "web") != "a1" {
			t.Errorf("another name: %v", err)
		}
		late = d
	}
	put(t, d, "a2", "api")
	session.Close()
	if _, err := d.Begin(t.Context()); !errors.Is(err, ErrFenced) {
		t.Errorf("without a lease: %v", err)
	}
}

// TestReconcile: after a crash between claim and record, and after changes without etcd, the directory has the boxes of the host. A name
// that another box has got since is not taken from it.
func TestReconcile(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	a, _ := host(t, c, "aaaaaa")
	b, _ := host(t, c, "bbbbbb")
	put(t, a, "same", "one")
	put(t, a, "claimed", "two") // the host died before it stored the box
	put(t, a, "renamed", "three")
	put(t, b, "other", "four")
	have := map[string]Entry{"same": {Name: "one"}, "renamed": {Name: "five", Labels: []string{"x"}}, "new": {Name: "four", Labels: []string{"y"}}}
	for i := range page + 10 {
		have[fmt.Sprintf("many%04d", i)] = Entry{}
	}
	for range 2 {
		conflicts, err := a.Reconcile(t.Context(), have)
		if err != nil || !slices.Equal(conflicts, []string{"new"}) {
			t.Fatal(conflicts, err)
		}
	}
	boxes, err := b.Boxes(t.Context(), "aaaaaa")
	if err != nil {
		t.Fatal(err)
	}
	want := maps.Clone(have)
	want["new"] = Entry{Labels: []string{"y"}}
	if !maps.EqualFunc(boxes, want, Entry.Equal) {
		t.Errorf("%d boxes, %d wanted: %v", len(boxes), len(want), boxes["new"])
	}
	for name, box := range map[string]string{"one": "same", "two": "", "three": "", "four": "other", "five": "renamed"} {
		if got := owner(t, a, name); got != box {
			t.Errorf("%s: %q", name, got)
		}
	}
}
