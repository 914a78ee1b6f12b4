package urls

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/config"
	"boxgate/ingress"
	"boxgate/policy"
	"boxgate/policy/name"
	quotas "boxgate/quota"
	"boxgate/store"
)

// TestPendingNamesTakeTurns: a key with hundreds of domains on unresponsive nameservers gets a quarter of the lookups,
// and another key's domain is looked up in the round in which it is due.
func TestPendingNamesTakeTurns(t *testing.T) {
	t.Parallel()
	var p pendingNames
	start := time.Now()
	for port := range 20 {
		var hosts []string
		for i := range 16 {
			hosts = append(hosts, fmt.Sprintf("n%d-%d.evil.example", port, i))
		}
		p.set(store.URL{Box: "evil", Port: uint16(port + 1), Owner: "mallory", Pending: hosts, CreatedAt: start}, start)
	}
	p.set(store.URL{Box: "good", Port: 80, Owner: "alice", Pending: []string{"app.example.org"}, CreatedAt: start}, start)
	if list := p.due(start.Add(firstLookup - 1)); len(list) > 0 {
		t.Errorf("%d are looked up too early", len(list))
	}
	list := p.due(start.Add(firstLookup))
	alices := slices.IndexFunc(list, func(n pendingName) bool { return n.key == "alice" })
	if len(list) != lookupsOfKey+1 || alices < 0 {
		t.Errorf("%d are looked up, alice's at %d", len(list), alices)
	}
	// Four more such keys use all lookups; then the key that has waited longest comes first.
	for _, key := range []string{"m1", "m2", "m3", "m4"} {
		var hosts []string
		for i := range 64 {
			hosts = append(hosts, fmt.Sprintf("%s-%d.evil.example", key, i))
		}
		p.set(store.URL{Box: policy.BoxID(key), Port: 80, Owner: key, Pending: hosts, CreatedAt: start}, start)
	}
	seen := false
	for round := range 3 {
		list := p.due(start.Add(3*firstLookup + time.Duration(round)*time.Second))
		if len(list) > concurrentLookups {
			t.Errorf("%d are looked up at the same time", len(list))
		}
		seen = seen || slices.ContainsFunc(list, func(n pendingName) bool { return n.key == "alice" })
	}
	if !seen {
		t.Error("a key does not get its turn")
	}
	p.remove("good", 0)
	for round := range 40 {
		if slices.ContainsFunc(p.due(start.Add(lastLookup*time.Duration(round))), func(n pendingName) bool { return n.key == "alice" }) {
			t.Fatal("a domain of a deleted box is looked up")
		}
	}
}

// TestListingLooksAgain: a pending domain is looked up less and less often. Listing the URLs of its box brings the next
// lookup forward, within a limit.
func TestListingLooksAgain(t *testing.T) {
	t.Parallel()
	var p pendingNames
	now := time.Now()
	p.set(store.URL{Box: "good", Port: 80, Owner: "alice", Pending: []string{"app.example.org"}, CreatedAt: now}, now)
	looks := 0
	for end := now.Add(24 * time.Hour); now.Before(end); now = now.Add(time.Second) {
		looks += len(p.due(now))
	}
	if looks < 24 || looks > 40 {
		t.Errorf("%d lookups in a day", looks)
	}
	looks = 0
	for end := now.Add(time.Minute); now.Before(end); now = now.Add(time.Second) {
		p.bringForward("other")
		looks += len(p.due(now))
	}
	if looks > 1 {
		t.Errorf("%d lookups in a minute in which another box's URLs are listed", looks)
	}
	looks = 0
	for end := now.Add(time.Minute); now.Before(end); now = now.Add(time.Second) {
		p.bringForward("good")
		looks += len(p.due(now))
	}
	if looks < 5 || looks > 7 {
		t.Errorf("%d lookups in a minute of listing", looks)
	}
}

// TestOrdersAreBounded: a box may use a part of its key's orders, a key half of the total, and a second key half of the
// rest.
func TestOrdersAreBounded(t *testing.T) {
	t.Parallel()
	var o Orders
	now := time.Now()
	most := ordersOfAll // of one key by its quota
	take := func(key string, box policy.BoxID) (n int, err error) {
		book := quotas.New(quotas.Config{Defaults: quotas.Limits{quotas.Certificates: int64(most)}})
		rate := func() error { return book.Rate(quotas.Holder{Type: quotas.APIKey, ID: key}, quotas.Certificates) }
		for range 2 * ordersOfAll {
			if err = o.countOrder("x.example", key, box, now, rate); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if n, err := take("mallory", "b1"); n != ordersOfBox || !errors.Is(err, errOrdersOfBox) {
		t.Errorf("a box: %d %v", n, err)
	}
	if n, err := take("mallory", "b2"); n != (ordersOfAll+1)/2-ordersOfBox || !errors.Is(err, errOrdersOfKey) {
		t.Errorf("a key: %d more, %v", n, err)
	}
	if n, err := take("second", "b3"); n < 15 || !errors.Is(err, errOrdersOfKey) {
		t.Errorf("another key: %d %v", n, err)
	}
	if n, _ := take("victim", "b4"); n < 5 {
		t.Errorf("a third key: %d", n)
	}
	now = now.Add(orderTime)
	for range ordersOfBox / 2 {
		if err := o.countOrder("x.example", "mallory", "b1", now, func() error { return nil }); err != nil {
			t.Error(err)
		}
		o.repeatOrder("x.example", now)
	}
	if n, err := take("mallory", "b1"); n != 0 || !errors.Is(err, errOrdersOfBox) {
		t.Errorf("a box whose attempts fail: %d %v", n, err)
	}
	now = now.Add(orderTime)
	if n, _ := take("mallory", "b1"); n != ordersOfBox {
		t.Errorf("an hour later: %d", n)
	}
	now, most = now.Add(orderTime), 7
	var of *quotas.Error
	if n, err := take("mallory", "b1"); n != most || !errors.As(err, &of) || of.Kind != quotas.Certificates {
		t.Errorf("a key with a quota: %d %v", n, err)
	}
}

// TestOrdersOfAdminsAreNotBounded: orders for URLs of the operator or of an admin key are not limited, unlike orders of
// other keys.
func TestOrdersOfAdminsAreNotBounded(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	_, err = db.Keys.Ensure()
	table := NewTable(config.Ingress{}, "")
	o := NewOrders(table, &Domains{store: db.URLs, keys: db.Keys}, quotas.New(quotas.Config{Defaults: quotas.Limits{quotas.Certificates: ordersOfBox}}))
	keys := map[string]string{"operator": store.OperatorKey}
	for name, role := range map[string]api.Role{"admin": api.RoleAdmin, "creator": api.RoleCreator, "box": api.RoleBox} {
		_, made, failed := db.Keys.Create(store.APIKey{Name: name, Role: string(role)})
		keys[name], err = made.ID, errors.Join(err, failed)
	}
	keys["revoked"] = "key_0000000000000000"
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range keys {
		host := name + ".example.org"
		table.set([]string{host}, ingress.Target{ID: name, Box: policy.BoxID(name), Owner: key})
		n := 0
		for n < 2*ordersOfAll && o.Order(host) == nil {
			n++
		}
		if bounded, free := n <= ordersOfBox, name == "operator" || name == "admin"; bounded == free {
			t.Errorf("%s: %d orders", name, n)
		}
	}
}

// TestWhoMayHaveADomain: the proofs that each caller needs for a name.
func TestWhoMayHaveADomain(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	published := map[string][]string{}
	d := &Domains{
		store: db.URLs, keys: db.Keys, log: zap.NewNop(), rows: config.Domains{{Suffix: "corp.example", Keys: []string{"ci"}}, {Suffix: "x.corp.example", Keys: []string{"key_1"}}},
		text: func(_ context.Context, n name.Name) ([]string, error) {
			if n.String() == challengeLabel+"down.example.org" {
				return nil, errors.New("no nameserver answers")
			}
			if n.String() == challengeLabel+"panic.example.org" {
				panic("a resolver")
			}
			return published[n.String()], nil
		},
	}
	ci := api.Caller{Key: "key_1", Name: "ci", Role: api.RoleCreator}
	for _, host := range []string{"app.example.org", "down.example.org", "panic.example.org"} {
		value, err := d.recordText("key_1", host)
		if err != nil {
			t.Fatal(err)
		}
		published[challengeLabel+host] = []string{"v=spf1 -all", value}
	}
	for _, tt := range []struct {
		caller  api.Caller
		host    string
		proof   string
		pending bool
		refused bool
	}{
		{ci, "app.example.org", proofDNS, false, false},
		{ci, "www.example.org", "", true, false},
		{ci, "down.example.org", "", true, false},
		{ci, "panic.example.org", "", true, false},
		{ci, "app.corp.example", proofConfig, false, false},
		{ci, "a.x.corp.example", proofConfig, false, false},
		{api.Caller{Key: "key_2", Name: "cd", Role: api.RoleCreator}, "app.example.org", "", true, false},
		{api.Caller{Key: "key_2", Name: "cd", Role: api.RoleBox}, "app.corp.example", "", false, true},
		{api.Caller{Key: "key_2", Name: "ci", Role: api.RoleBox}, "a.x.corp.example", "", false, true},
		{api.Caller{}, "app.corp.example", "", false, true},
		{api.Caller{}, "app.example.org", "", true, false},
		{api.Caller{Key: "root", Name: "root", Role: api.RoleAdmin}, "app.corp.example", proofOperator, false, false},
	} {
		n, err := name.Parse(tt.host)
		if err != nil {
			t.Fatal(err)
		}
		claim, pending, err := d.claim(t.Context(), tt.caller, []name.Name{n}, nil)
		if (err != nil) != tt.refused || claim.Proofs[tt.host] != tt.proof || (len(pending) > 0) != tt.pending || claim.Admin != (tt.caller.Role == api.RoleAdmin) {
			t.Errorf("%s asks for %s: %+v, pending %v, %v", tt.caller.Name, tt.host, claim, pending, err)
		}
	}
}
