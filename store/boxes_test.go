package store

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/history"
)

func TestNothingIsKeptOfABoxThatDoesNotExist(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for what, err := range map[string]error{
		"policy": db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 1}, history.Origin{}), "headers": db.Rules.SetHeaders("b1", nil, 1), "CA": db.Authorities.SetCA("b1", CA{}),
		"URL": db.URLs.Set(URL{Box: "b1", Port: 80}, Claim{}), "update": db.Boxes.Update(Box{ID: "b1"}), "schedule": db.Schedules.Add(Schedule{ID: "s1", Box: "b1"}, 1), "delete URL": db.URLs.Delete("b1", 80),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := db.Boxes.Delete("b1"); err != nil {
		t.Errorf("deleting again: %v", err)
	}
	for _, id := range []policy.BoxID{"", "@", "A", "a/b", "a\x00", policy.BoxID(strings.Repeat("a", 33))} {
		if _, err := db.Boxes.Allocate(Box{ID: id}, pools); err == nil {
			t.Errorf("%q was taken for an ID", id)
		}
	}
}

func TestAllocation(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for i, want := range []string{"10.200.0.4 fd42:b0c5::4", "10.200.0.5 fd42:b0c5::5", "10.200.0.6 fd42:b0c5::6"} {
		b := allocate(t, db, Box{ID: policy.BoxID(fmt.Sprintf("b%d", i)), Name: fmt.Sprintf("name%d", i)})
		if got := b.V4.String() + " " + b.V6.String(); got != want || b.Index != uint32(i) {
			t.Errorf("box %d: %s, index %d", i, got, b.Index)
		}
	}
	if _, err := db.Boxes.Allocate(Box{ID: "b9", Name: "name9"}, pools); !errors.Is(err, ErrExhausted) { // .7 is the broadcast address
		t.Errorf("the pool has no end: %v", err)
	}
	if _, err := db.Boxes.ByName("name9"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a box that got no address left its name: %v", err)
	}
	if err := db.Boxes.Delete("b1"); err != nil {
		t.Fatal(err)
	}
	for box, want := range map[*Box]error{
		{ID: "b2"}: ErrConflict, {ID: "b3", Name: "name2"}: ErrNameTaken,
	} {
		if _, err := db.Boxes.Allocate(*box, pools); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", box, err, want)
		}
	}
	if b := allocate(t, db, Box{ID: "b4", Name: "name1"}); b.Index != 1 || b.V4.String() != "10.200.0.5" {
		t.Errorf("the address of the deleted box was not given out again: %+v", b)
	}
}

func TestAllocationAvoidsAddressesOfOlderPools(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	moved := Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), Reserved: 3, Max: 10} // b1 has .4, which is now the address of index 1
	got, err := db.Boxes.Allocate(Box{ID: "b3"}, moved)
	if err != nil || got.V4.String() != "10.200.0.6" || got.V6.IsValid() {
		t.Errorf("%+v, %v", got, err)
	}
	limited := moved
	limited.Max = 4
	if _, err := db.Boxes.Allocate(Box{ID: "b4"}, limited); !errors.Is(err, ErrExhausted) {
		t.Errorf("more boxes than Max: %v", err)
	}
}

func TestDeletingABoxDeletesEverythingOfIt(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	empty := contents(t, db)
	fill := func(id policy.BoxID) {
		allocate(t, db, Box{ID: id, Name: "name-" + string(id)})
		if err := errors.Join(
			db.Rules.StagePolicy(id, Policy{Spec: policy.Spec{}, Version: 1}, history.Origin{}), db.Rules.CommitPolicy(id), db.Rules.StagePolicy(id, Policy{Spec: policy.Spec{}, Version: 2}, history.Origin{}),
			db.Rules.SetHeaders(id, nil, 1), db.Authorities.SetCA(id, CA{}), db.URLs.Set(URL{Box: id, Port: 80}, Claim{}), db.URLs.Set(URL{Box: id, Port: 81}, Claim{}),
			db.Schedules.Add(Schedule{ID: "s1", Box: id}, 2), db.Schedules.Add(Schedule{ID: "s2", Box: id}, 2),
		); err != nil {
			t.Fatal(err)
		}
	}
	fill("b1")
	one := contents(t, db)
	fill("b11") // whose ID is prefixed by the other's
	forget := func(id policy.BoxID) {
		t.Helper()
		if err := errors.Join(db.Boxes.Delete(id), db.History.Expire(time.Now().Add(time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	forget("b11")
	if got := contents(t, db); cmp.Diff(one, got) != "" {
		t.Errorf("after deleting b11: %s", cmp.Diff(one, got))
	}
	fill("b11")
	forget("b1")
	if urls, err := db.URLs.List("b11"); err != nil || len(urls) != 2 {
		t.Errorf("the URLs of another box: %v, %v", urls, err)
	}
	forget("b11")
	if got := contents(t, db); cmp.Diff(empty, got) != "" {
		t.Errorf("left: %s", cmp.Diff(empty, got))
	}
}

func TestUpdateBox(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	b := allocate(t, db, Box{ID: "b1", Name: "one", State: "creating"})
	allocate(t, db, Box{ID: "b2", Name: "two"})
	change := b
	change.State, change.Name, change.Index, change.V4 = "running", "uno", 77, netip.MustParseAddr("10.0.0.1")
	if err := db.Boxes.Update(change); err != nil {
		t.Fatal(err)
	}
	got, err := db.Boxes.ByName("uno")
	if err != nil || got.State != "running" || got.Index != b.Index || got.V4 != b.V4 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := db.Boxes.ByName("one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the old name: %v", err)
	}
	change.Name = "two"
	if err := db.Boxes.Update(change); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a name in use: %v", err)
	}
}

// A host name belongs to one URL at a time, even with concurrent requests.
func TestHostNamesBelongToOneURL(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	const host = "app.example.org"
	take := func(id policy.BoxID, port uint16, hosts ...string) error {
		return db.URLs.Set(URL{Box: id, Port: port, Hostnames: hosts}, claim("key", hosts...))
	}
	results := make(chan error)
	for _, id := range []policy.BoxID{"b1", "b2"} {
		for port := uint16(1); port <= 8; port++ {
			go func() { results <- take(id, port, "other-"+string(id)+strconv.Itoa(int(port)), host) }()
		}
	}
	won := 0
	for range 16 {
		if err := <-results; err == nil {
			won++
		} else if !errors.Is(err, ErrHostTaken) || !strings.Contains(err.Error(), host) {
			t.Error(err)
		}
	}
	urls, err := db.URLs.List("")
	if won != 1 || len(urls) != 1 || err != nil {
		t.Fatalf("%d of 16 got the name, stored are %+v, %v", won, urls, err)
	}
	owner := urls[0]
	if err := take(owner.Box, owner.Port, host); err != nil {
		t.Errorf("a URL replaced by one with the same name: %v", err)
	}
	if err := take(owner.Box, 99, host); !errors.Is(err, ErrHostTaken) {
		t.Errorf("another port of the same box: %v", err)
	}
	if err := db.URLs.Delete(owner.Box, owner.Port); err != nil {
		t.Fatal(err)
	}
	if err := take("b1", 99, host); err != nil {
		t.Errorf("a name that was free again: %v", err)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	token := NewKey()
	hash := HashKey(token.Reveal())
	for _, port := range []uint16{8000, 80} {
		if err := db.URLs.Set(URL{Box: "b1", Port: port, Bearer: &hash}, Claim{}); err != nil {
			t.Fatal(err)
		}
	}
	urls, err := db.URLs.List("b1")
	if err != nil || len(urls) != 2 || urls[0].Port != 80 {
		t.Fatalf("%+v, %v; want them by port", urls, err)
	}
	if !urls[0].Bearer.Matches(token.Reveal()) || urls[0].Bearer.Matches("wrong") || urls[0].Bearer.Matches("") || urls[0].Password != nil {
		t.Error("the hash does not tell the token from others")
	}
	if err := db.URLs.Delete("b1", 80); err != nil {
		t.Fatal(err)
	}
	if _, err := db.URLs.Get("b1", 80); !errors.Is(err, ErrNotFound) {
		t.Errorf("the deleted URL: %v", err)
	}
	if u, err := db.URLs.Get("b1", 8000); err != nil || u.Port != 8000 {
		t.Errorf("the other URL: %+v, %v", u, err)
	}
}

// A change that was made for a URL is not applied to the one that has replaced it.
func TestChangeURL(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	first := time.Unix(1000, 1).UTC()
	if err := db.URLs.Set(URL{Box: "b1", Port: 80, CreatedAt: first, Key: name.NewSecret("key")}, Claim{}); err != nil {
		t.Fatal(err)
	}
	end := func(u *URL) { u.SignedOut = append(u.SignedOut, SignedOut{Session: "s"}) }
	if u, err := db.URLs.Change("b1", 80, first, end); err != nil || len(u.SignedOut) != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := db.URLs.Get("b1", 80); err != nil || len(u.SignedOut) != 1 || u.Key.Reveal() != "key" {
		t.Errorf("%+v, %v", u, err)
	}
	if err := db.URLs.Set(URL{Box: "b1", Port: 80, CreatedAt: first.Add(1)}, Claim{}); err != nil {
		t.Fatal(err)
	}
	for _, port := range []uint16{80, 81} {
		if _, err := db.URLs.Change("b1", port, first, end); !errors.Is(err, ErrNotFound) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	if u, err := db.URLs.Get("b1", 80); err != nil || u.SignedOut != nil {
		t.Errorf("%+v, %v", u, err)
	}
}
