package urls

import (
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/host/handover"
	"boxgate/host/handover/handovertest"
	"boxgate/ingress/access"
	"boxgate/ingress/link"
	"boxgate/store"
)

// Every method that the API accepts for a link can be encoded in a link.
func TestLinkMethods(t *testing.T) {
	t.Parallel()
	if !slices.Equal(api.LinkMethods, link.Methods) {
		t.Errorf("the API has %v, links have %v", api.LinkMethods, link.Methods)
	}
}

// A sign-out that is waiting for the store does not drop sign-outs that were stored in the meantime.
func TestSignOutsAtTheSameTime(t *testing.T) {
	t.Parallel()
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	box, err := db.Boxes.Allocate(store.Box{ID: "box1"}, store.Pools{V4: netip.MustParsePrefix("10.0.0.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		now := time.Now()
		if err := db.URLs.Set(store.URL{Box: box.ID, Port: 80, CreatedAt: now, Key: newURLKey()}, store.Claim{}); err != nil {
			t.Fatal(err)
		}
		stored, err := db.URLs.Get(box.ID, 80)
		if err != nil {
			t.Fatal(err)
		}
		target := urlTarget(stored, box.V4)
		first, second := access.New(false, now, now.Add(time.Hour)), access.New(false, now, now.Add(time.Hour))
		busy, release, waits := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var done sync.WaitGroup
		done.Go(func() {
			_, _ = db.URLs.Change(box.ID, 80, stored.CreatedAt, func(*store.URL) {
				close(busy)
				<-release
			})
		})
		<-busy
		done.Go(func() {
			target.Access.Ended.Add(first, now)
			close(waits)
			if err := signOut(db.URLs, target); err != nil {
				t.Error(err)
			}
		})
		<-waits
		for range 1000 { // it should get as far as the store, but need not
			runtime.Gosched()
		}
		target.Access.Ended.Add(second, now)
		close(release)
		done.Wait()
		if stored, err = db.URLs.Get(box.ID, 80); err != nil {
			t.Fatal(err)
		}
		if ended := urlAccess(stored).Ended; !ended.Has(first) || !ended.Has(second) {
			t.Fatal("a signed-out session is valid again")
		}
	}
}

// A session that ends is also over in the predecessor: when the sign-out is answered, stored or not, the predecessor has
// no open requests of the URL.
func TestASignOutCutsWhereItDrains(t *testing.T) {
	t.Parallel()
	before, other := handovertest.New(t)
	db, err := store.Open(store.Options{Dir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	target := urlTarget(store.URL{Box: "box1", Port: 80, Key: newURLKey()}, netip.MustParseAddr("10.0.0.2"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := SignOut(db.URLs, before, target); err == nil {
		t.Error("no error although the store failed")
	}
	if !other.Has(handover.URL, "", target.ID) {
		t.Errorf("messages: %v", other.Received())
	}
}
