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

// hostClaims is hostDirectory with the claims to domains as etcd has them.
type hostClaims struct {
	hostDirectory
	t       *testing.T
	members map[string]bool
}

func (c hostClaims) IsMember(host string) bool { return c.members[host] }

func (c hostClaims) Claims() (map[string]directory.Claim, bool) {
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
	d := directory.Directory{Client: etcdtest.Start(t).Client(), Keys: fleet.KeysOf("test"), Host: "aaaaaa", Guard: func() clientv3.Cmp {
		return clientv3.Compare(clientv3.Version("unused"), "=", 0)
	}}
	other := d
	other.Host = "bbbbbb"
	claims := hostClaims{hostDirectory{d}, t, map[string]bool{"aaaaaa": true, "bbbbbb": true}}
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
	expect("its URL was not stored", "new.example", "", false)
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
