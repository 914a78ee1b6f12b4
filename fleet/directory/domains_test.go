package directory

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

// claimOf returns the claim to a domain; a zero one: there is none.
func claimOf(t *testing.T, c *clientv3.Client, domain string) (claim Claim) {
	t.Helper()
	text, revision, err := fleet.Get(t.Context(), c, keys.Domains()+domain)
	if err != nil {
		t.Fatal(err)
	}
	claim.Revision = revision
	if text != nil {
		if claim.Domain, err = fleet.Decode[Domain](text); err != nil {
			t.Fatal(err)
		}
	}
	return claim
}

func members(hosts ...string) func(string) bool {
	return func(host string) bool {
		for _, h := range hosts {
			if h == host {
				return true
			}
		}
		return false
	}
}

// TestDomainHasOneHost: of hosts that claim a domain at the same time, with others or alone, one gets it, and a claim of several domains is made
// whole or not at all.
func TestDomainHasOneHost(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	by := By{Key: "key", Member: members("aaaaaa", "bbbbbb", "cccccc")}
	var all []Directory
	for _, id := range []string{"aaaaaa", "bbbbbb", "cccccc"} {
		d, _ := host(t, c, id)
		all = append(all, d)
	}
	for round := range 10 {
		first, second := fmt.Sprintf("one-%d.example", round), fmt.Sprintf("two-%d.example", round)
		got := make([]bool, len(all))
		var claims sync.WaitGroup
		for i, d := range all {
			claims.Go(func() {
				err := d.ClaimDomains(t.Context(), []string{first, second}, by)
				if got[i] = err == nil; err != nil && !errors.Is(err, ErrDomainTaken) {
					t.Error(err)
				}
			})
		}
		claims.Wait()
		for i, d := range all {
			if own := claimOf(t, c, first).Host == d.Host; own != got[i] || own != (claimOf(t, c, second).Host == d.Host) {
				t.Errorf("round %d, host %s: claimed %v, has it %v", round, d.Host, got[i], own)
			}
		}
	}
	if err := all[0].ClaimDomains(t.Context(), []string{"third.example"}, by); err != nil {
		t.Fatal(err)
	}
	if err := all[1].ClaimDomains(t.Context(), []string{"fourth.example", "third.example"}, by); !errors.Is(err, ErrDomainTaken) || claimOf(t, c, "fourth.example").Host != "" {
		t.Errorf("a claim with a domain of another host: %v, %v", err, claimOf(t, c, "fourth.example"))
	}
	before := claimOf(t, c, "third.example")
	if err := all[0].ClaimDomains(t.Context(), []string{"third.example"}, by); err != nil || claimOf(t, c, "third.example") != before {
		t.Errorf("the same claim again: %v", err)
	}
}

// TestFreedDomainIsKept: a domain that a URL has released is its key's for a week, on each host; admin keys may have it. Claims of hosts that left
// do not count, and a host without its lease claims nothing.
func TestFreedDomainIsKept(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	a, _ := host(t, c, "aaaaaa")
	b, session := host(t, c, "bbbbbb")
	by := By{Key: "first", Member: members("aaaaaa", "bbbbbb")}
	claim := func(d Directory, by By) error { return d.ClaimDomains(t.Context(), []string{"app.example"}, by) }
	free := func(d Directory, at time.Time) {
		t.Helper()
		if err := d.ReplaceDomain(t.Context(), "app.example", claimOf(t, c, "app.example"), &Domain{Host: d.Host, Key: "first", Freed: at}); err != nil {
			t.Fatal(err)
		}
	}
	if err := claim(a, by); err != nil {
		t.Fatal(err)
	}
	free(a, time.Now())
	other := By{Key: "second", Member: by.Member}
	for _, d := range []Directory{a, b} {
		if err := claim(d, other); !errors.Is(err, ErrDomainKept) {
			t.Errorf("another key, on host %s: %v", d.Host, err)
		}
	}
	if err := claim(b, by); err != nil {
		t.Errorf("the key itself, on another host: %v", err)
	}
	free(b, time.Now())
	if err := claim(a, By{Key: "second", Admin: true, Member: by.Member}); err != nil {
		t.Errorf("an admin key: %v", err)
	}
	free(a, time.Now().Add(-KeptTime))
	if err := claim(b, other); err != nil {
		t.Errorf("after a week: %v", err)
	}
	unheard := By{Key: "first", Member: members("aaaaaa")} // of host b, which has joined just now
	if err := claim(a, unheard); !errors.Is(err, ErrDomainTaken) {
		t.Errorf("of a host of which this one has not heard yet: %v", err)
	}
	theirs := claimOf(t, c, "app.example")
	if err := a.ReplaceDomain(t.Context(), "app.example", theirs, nil); err != nil || claimOf(t, c, "app.example") != theirs {
		t.Errorf("deletes the claim of a host of which this one has not heard yet: %v", err)
	}
	if _, err := c.Delete(t.Context(), keys.Host("bbbbbb")); err != nil {
		t.Fatal(err)
	}
	if err := claim(a, unheard); err != nil {
		t.Errorf("of a host that left: %v", err)
	}
	had := claimOf(t, c, "app.example")
	earlier := had
	earlier.Revision--
	if err := a.ReplaceDomain(t.Context(), "app.example", earlier, nil); err != nil || claimOf(t, c, "app.example") != had {
		t.Errorf("a claim that has changed: %v", err)
	}
	session.Close()
	if err := b.ClaimDomains(t.Context(), []string{"other.example"}, by); !errors.Is(err, ErrFenced) {
		t.Errorf("a host without its lease: %v", err)
	}
	if err := b.ReplaceDomain(t.Context(), "app.example", had, nil); !errors.Is(err, ErrFenced) || claimOf(t, c, "app.example") != had {
		t.Errorf("a host without its lease: %v", err)
	}
}
