package shared

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/watch"
)

// announce writes the presence of a peer, with the kinds that its program applies.
func (p *peer) announce(t *testing.T, kinds ...Kind) {
	t.Helper()
	presence := fleet.Presence{Instance: p.table.Host}
	for _, kind := range kinds {
		presence.Kinds = append(presence.Kinds, string(kind))
	}
	text, err := fleet.Encode(presence)
	if err == nil {
		_, err = p.table.Client.Put(t.Context(), keysOfTest.Presence(p.table.Host), text, clientv3.WithLease(p.lease))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestHostOfAnEarlierVersion: a host acknowledges every revision, also one that changed a kind that its program does not know. Such a kind is
// not changed while a host of an earlier version has a lease; if the host claimed its lease during the change, the change is not
// answered as in force. API keys are changed as before.
func TestHostOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client()
	a, b := newPeer(t, client, "aaaaaa"), newPeer(t, client, "bbbbbb")
	a.announce(t, Policies)
	change := func(kind Kind, value string) (int64, error) {
		return a.table.Change(t.Context(), kind, set("p", value))
	}
	refused := func(because string) {
		t.Helper()
		if _, err := change(Policies, because); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "bbbbbb") || strings.Contains(err.Error(), "aaaaaa") {
			t.Errorf("%s: %v", because, err)
		}
		if now, err := a.table.list(t.Context(), Policies); err != nil || string(now["p"]) == because {
			t.Errorf("%s: %q, %v", because, now, err)
		}
	}
	refused("a host whose presence has no kinds")
	b.announce(t, Headers)
	refused("a host that applies another kind")
	if _, err := change(APIKeys, "1"); err != nil {
		t.Errorf("API keys: %v", err)
	}

	b.announce(t, Headers, Policies)
	revision, err := change(Policies, "1")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*peer{a, b} {
		if err := p.acks.Put(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
	}
	if behind, err := a.acks.Behind(t.Context(), Policies, revision); err != nil || len(behind) > 0 {
		t.Errorf("all acknowledged: %v, %v", behind, err)
	}
	b.announce(t) // a downgrade during the change
	if behind, err := a.acks.Behind(t.Context(), Policies, revision); err != nil || !slices.Equal(behind, []string{"bbbbbb"}) {
		t.Errorf("a host that acknowledged without applying the kind: %v, %v", behind, err)
	}
	if behind, err := a.acks.Behind(t.Context(), APIKeys, revision); err != nil || len(behind) > 0 {
		t.Errorf("API keys: %v, %v", behind, err)
	}
	if _, err := client.Put(t.Context(), keysOfTest.Presence("bbbbbb"), "{", clientv3.WithLease(b.lease)); err != nil {
		t.Fatal(err)
	}
	refused("a presence that cannot be read")
	if _, err := client.Revoke(t.Context(), b.lease); err != nil {
		t.Fatal(err)
	}
	if _, err := change(Policies, "2"); err != nil {
		t.Errorf("the host has no lease: %v", err)
	}
}

// TestCurrentWhileAKindIsApplied: requests do not wait until a change is applied, which may take long, and the host has not acknowledged it
// until then. A first listing that is still being applied is not current.
func TestCurrentWhileAKindIsApplied(t *testing.T) {
	t.Parallel()
	m := newMirror(keysOfTest, []Kind{Policies}, zap.NewNop())
	begun, end := make(chan struct{}), make(chan struct{})
	m.Attach(map[Kind]Apply{Policies: func(map[string][]byte) error {
		begun <- struct{}{}
		<-end
		return nil
	}})
	for revision := int64(1); revision < 3; revision++ {
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Follow(watch.Change{Revision: revision, Listed: revision == 1, Set: []watch.Entry{{Key: prefixOf(keysOfTest, Policies) + "k", Value: []byte("v")}}})
		}()
		<-begun
		if applied, touched, _ := m.state(); m.Current() != (revision > 1) || applied >= revision || touched >= revision {
			t.Errorf("while revision %d is applied: current %v, applied %d, acknowledged %d", revision, m.Current(), applied, touched)
		}
		end <- struct{}{}
		<-done
		if applied, _, _ := m.state(); !m.Current() || applied != revision {
			t.Errorf("revision %d was applied: current %v, applied %d", revision, m.Current(), applied)
		}
	}
}

// TestCountsWhileKindsChange: metrics are read at any time, also while changes are followed and applied, and show the kinds that are not in force.
func TestCountsWhileKindsChange(t *testing.T) {
	t.Parallel()
	m := newMirror(keysOfTest, []Kind{Policies, Headers}, zap.NewNop())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				m.Counts()
			}
		}
	}()
	seen := -1
	nothing := func(map[string][]byte) error { return nil }
	m.Attach(map[Kind]Apply{Policies: nothing, Headers: func(map[string][]byte) error { _, seen = m.Counts(); return nil }})
	for revision := int64(1); revision <= 20_000; revision++ {
		m.Follow(watch.Change{Revision: revision, Set: []watch.Entry{{Key: prefixOf(keysOfTest, Headers) + strconv.FormatInt(revision%50, 10)}}})
	}
	close(stop)
	<-done
	if objects, pending := m.Counts(); seen != 1 || pending != 0 || objects[Headers] != 50 || objects[Policies] != 0 {
		t.Errorf("%v objects, %d kinds pending, %d while one was applied", objects, pending, seen)
	}
}

// TestOneKindFails: a kind that cannot be applied does not delay the others, but the host is not current, and acknowledges nothing, until all
// are applied. A kind that the host has not attached counts as one that cannot be applied.
func TestOneKindFails(t *testing.T) {
	t.Parallel()
	for _, failing := range []Kind{APIKeys, Policies} {
		m := newMirror(keysOfTest, []Kind{APIKeys, Policies}, zap.NewNop())
		var full error
		seen := map[Kind]string{}
		apply := map[Kind]Apply{}
		for _, kind := range m.kinds {
			apply[kind] = func(objects map[string][]byte) error {
				if kind == failing && full != nil {
					return full
				}
				seen[kind] = string(objects["k"])
				return nil
			}
		}
		change := func(revision int64, value string) {
			c := watch.Change{Revision: revision}
			for _, kind := range m.kinds {
				c.Set = append(c.Set, watch.Entry{Key: prefixOf(keysOfTest, kind) + "k", Value: []byte(value)})
			}
			m.Follow(c)
		}
		m.Attach(apply)
		change(1, "old")
		if !m.Current() {
			t.Fatal("not current")
		}
		full = errors.New("disk full")
		change(2, "new")
		applied, touched, _ := m.state()
		for _, kind := range m.kinds {
			if want := map[bool]string{true: "old", false: "new"}[kind == failing]; seen[kind] != want {
				t.Errorf("%s fails, and %s has %q", failing, kind, seen[kind])
			}
		}
		if m.Current() || applied != 1 || touched != 1 {
			t.Errorf("%s fails: current %v, applied %d, acknowledged %d", failing, m.Current(), applied, touched)
		}
		full = nil
		change(3, "new")
		if !m.Current() || seen[failing] != "new" {
			t.Errorf("%s can be applied again: current %v, %v", failing, m.Current(), seen)
		}
		delete(apply, failing)
		m.Attach(apply)
		if change(4, "newer"); m.Current() {
			t.Errorf("%s is not attached, and the host is current", failing)
		}
	}
}
