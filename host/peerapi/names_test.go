package peerapi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet"
	"boxgate/fleet/directory"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/node"
)

// hostDirectory is the directory of a host that is not fenced.
type hostDirectory struct {
	d     directory.Directory
	epoch *node.Epoch
}

func (d hostDirectory) Directory() directory.Directory { return d.d }
func (hostDirectory) Fenced() bool                     { return false }
func (d hostDirectory) Epoch() node.Epoch              { return *d.epoch }

// unguarded returns the directory of a host that always has its lease.
func unguarded(t *testing.T) directory.Directory {
	t.Helper()
	return directory.Directory{Client: etcdtest.Start(t).Client(), Keys: fleet.KeysOf("test"), Host: "aaaaaa", Guard: func() clientv3.Cmp {
		return clientv3.Compare(clientv3.Version("unused"), "=", 0)
	}}
}

// TestNamesWithoutBoxesAreFreed: a name that was claimed for a box which does not exist can be claimed again, whether the answer of the claim was
// lost or the box was not stored. Names of boxes stay.
func TestNamesWithoutBoxesAreFreed(t *testing.T) {
	t.Parallel()
	d := unguarded(t)
	boxes := map[string]directory.Entry{"aaaaaa1": {Name: "web"}}
	n := NewNames(hostDirectory{d, new(node.Epoch)}, func() map[string]directory.Entry { return boxes }, zap.NewNop())
	owner := func(name, want string) {
		t.Helper()
		if err := n.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _, err := d.Find(t.Context(), name); err != nil || got.Box != want {
			t.Errorf("%s belongs to %q, want %q, %v", name, got.Box, want, err)
		}
	}
	owner("web", "aaaaaa1")

	sent, err := n.directory(t.Context())
	if err == nil {
		err = sent.Put(t.Context(), "aaaaaa2", directory.Entry{Name: "lost"}) // the claim arrives
	}
	if err != nil {
		t.Fatal(err)
	}
	failed, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Claim(failed, "aaaaaa2", "lost", nil, true); !errors.Is(err, api.ErrUnavailable) { // without its answer
		t.Fatal(err)
	}
	owner("lost", "")
	done, err := n.Claim(t.Context(), "aaaaaa3", "late", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	owner("late", "aaaaaa3") // while the box is made
	done()
	owner("late", "")
	if _, err := n.Claim(t.Context(), "aaaaaa4", "web", nil, true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a name in use: %v", err)
	}
	owner("web", "aaaaaa1")
}

// TestNamesAfterALostLease: names that etcd has lost, as in a restored backup, are claimed again, also if the host was fenced for a moment only.
// Another box that has got one meanwhile keeps it.
func TestNamesAfterALostLease(t *testing.T) {
	t.Parallel()
	d := unguarded(t)
	boxes := map[string]directory.Entry{"aaaaaa1": {Name: "web"}, "aaaaaa2": {Name: "db"}}
	f := hostDirectory{d, new(node.Epoch)}
	n := NewNames(f, func() map[string]directory.Entry { return boxes }, zap.NewNop())
	sync := func(want map[string]string) {
		t.Helper()
		if err := n.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, box := range want {
			if got, _, err := d.Find(t.Context(), name); err != nil || got.Box != box {
				t.Errorf("%s belongs to %q, want %q, %v", name, got.Box, box, err)
			}
		}
	}
	sync(map[string]string{"web": "aaaaaa1", "db": "aaaaaa2"})
	for _, next := range []node.Epoch{{Lease: 7}, {Lease: 7, Listings: 1}} { // a lease that ended, and one that the backup has
		if _, err := d.Client.Delete(t.Context(), d.Keys.Root(), clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		other := d
		other.Host = "bbbbbb"
		if err := other.Put(t.Context(), "bbbbbb1", directory.Entry{Name: "db"}); err != nil {
			t.Fatal(err)
		}
		*f.epoch = next
		clear(n.conflicts)
		sync(map[string]string{"web": "aaaaaa1", "db": "bbbbbb1"})
	}
}

// TestClaimsThatArriveLate: a claim without an answer that reaches etcd after the directory was read takes no name. One that succeeds while the
// directory is read is known.
func TestClaimsThatArriveLate(t *testing.T) {
	t.Parallel()
	d := unguarded(t)
	n := NewNames(hostDirectory{d, new(node.Epoch)}, func() map[string]directory.Entry { return nil }, zap.NewNop())
	free := func(name string) {
		t.Helper()
		if err := n.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, _, err := d.Find(t.Context(), name); err != nil || got.Box != "" {
			t.Errorf("%s belongs to %q, %v", name, got.Box, err)
		}
	}
	sent, err := n.directory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	failed, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Claim(failed, "aaaaaa1", "lost", nil, true); !errors.Is(err, api.ErrUnavailable) {
		t.Fatal(err)
	}
	free("lost")
	if err := sent.Put(t.Context(), "aaaaaa1", directory.Entry{Name: "lost"}); !errors.Is(err, directory.ErrSuperseded) { // it arrives
		t.Errorf("the claim: %v", err)
	}
	free("lost")

	n.unknown()
	if sent, err = n.directory(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := d.Boxes(t.Context(), d.Host)
	if err != nil {
		t.Fatal(err)
	}
	done, err := n.Claim(t.Context(), "aaaaaa2", "early", nil, true)
	if err != nil {
		t.Fatal(err)
	}
	n.learn(sent.Epoch, found)
	done() // the box was not stored
	free("early")

	if _, err := n.Claim(failed, "aaaaaa3", "doubtful", nil, true); !errors.Is(err, api.ErrUnavailable) { // while the directory is read
		t.Fatal(err)
	}
	n.learn(sent.Epoch, found)
	if n.known != nil {
		t.Error("what was read before a claim without an answer counts")
	}
}

// hostClaims is hostDirectory with the claims to domains as etcd has them.
type hostClaims struct {
	hostDirectory
	t       *testing.T
	members map[string]bool
	late    *map[string]directory.Claim // the known claims, if they are not the present ones; nil: they are
}

func (c hostClaims) IsMember(host string) bool { return c.members[host] }

func (c hostClaims) Claims() (map[string]directory.Claim, bool) {
	if c.late != nil && *c.late != nil {
		return *c.late, true
	}
	answer, err := c.d.Client.Get(c.t.Context(), c.d.Keys.Domains(), clientv3.WithPrefix())
	if err != nil {
		c.t.Error(err)
		return nil, false
	}
	claims := map[string]directory.Claim{}
	for _, kv := range answer.Kvs {
		claim, err := fleet.Decode[directory.Domain](kv.Value)
		if err != nil {
			c.t.Error(err)
		}
		claims[strings.TrimPrefix(string(kv.Key), c.d.Keys.Domains())] = directory.Claim{Domain: claim, Revision: kv.ModRevision}
	}
	return claims, true
}

// TestClaimsFollowTheDomains: a domain is claimed as long as a URL has it, or is about to. A claim whose URL was not stored is deleted, and one whose
// URL is deleted stays for its key as long as the store keeps it. Domains from before the fleet are claimed, and claims of hosts that left deleted.
func TestClaimsFollowTheDomains(t *testing.T) {
	t.Parallel()
	d := unguarded(t)
	other := d
	other.Host = "bbbbbb"
	claims := hostClaims{hostDirectory{d, new(node.Epoch)}, t, map[string]bool{"aaaaaa": true, "bbbbbb": true}, new(map[string]directory.Claim)}
	served, freed := map[string]string{"old.example": "key"}, map[string]time.Time{}
	n := NewDomains(DomainsConfig{
		Fleet: claims, Log: zap.NewNop(), Served: func() map[string]string { return served },
		Serves: func(domain string) bool { _, ok := served[domain]; return ok },
		Freed:  func(domain string) (string, time.Time, error) { return "key", freed[domain], nil },
	})
	now := time.Now()
	expect := func(what, domain, host string, kept bool) {
		t.Helper()
		now = now.Add(2 * checkFreedEvery)
		if err := n.sync(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		all, _ := claims.Claims()
		if got := all[domain]; got.Host != host || got.Freed.IsZero() == kept {
			t.Errorf("%s: %+v", what, got)
		}
	}
	expect("a domain from before the fleet", "old.example", "aaaaaa", false)
	done, err := n.Claim(t.Context(), []string{"new.example"}, "key", false)
	if err != nil {
		t.Fatal(err)
	}
	expect("while its URL is stored", "new.example", "aaaaaa", false)
	if err := other.ClaimDomains(t.Context(), []string{"new.example"}, directory.By{Key: "key", Member: claims.IsMember}); !errors.Is(err, directory.ErrDomainTaken) {
		t.Errorf("by another host: %v", err)
	}
	done()
	before, _ := claims.Claims()
	expect("its URL was not stored", "new.example", "", false)
	*claims.late = before // the host has not heard of its own change yet
	if done, err = n.Claim(t.Context(), []string{"new.example"}, "key", false); err != nil {
		t.Fatal(err)
	}
	*claims.late = nil
	if all, _ := claims.Claims(); all["new.example"].Host != "aaaaaa" {
		t.Errorf("claimed again at once: %+v", all["new.example"])
	}
	done()
	expect("its URL was not stored again", "new.example", "", false)
	delete(served, "old.example")
	freed["old.example"] = now.Add(3 * checkFreedEvery)
	expect("its URL is deleted", "old.example", "aaaaaa", true)
	delete(freed, "old.example")
	expect("the store does not keep it any longer", "old.example", "", false)
	if err := other.ClaimDomains(t.Context(), []string{"theirs.example"}, directory.By{Key: "key", Member: claims.IsMember}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Claim(t.Context(), []string{"theirs.example"}, "key", true); !errors.Is(err, api.ErrConflict) {
		t.Errorf("a domain of another host: %v", err)
	}
	served["theirs.example"] = "key"
	expect("which this host serves, too", "theirs.example", "bbbbbb", false)
	delete(claims.members, "bbbbbb")
	expect("when the other host has left", "theirs.example", "aaaaaa", false)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Claim(gone, []string{"late.example"}, "key", true); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	if done, err := n.Claim(gone, []string{"theirs.example"}, "key", true); err != nil {
		t.Errorf("a domain that this host has: %v", err)
	} else {
		done()
	}
}
