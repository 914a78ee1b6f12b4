package fleet_test

import (
	"testing"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/internal/nightly"
)

// TestIdleConnectionStays: etcd does not close a connection without calls, as it does when it is pinged too often (too_many_pings).
func TestIdleConnectionStays(t *testing.T) {
	t.Parallel()
	nightly.Only(t)
	link := etcdtest.NewLink(t, etcdtest.Start(t).Endpoint())
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{link.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for range 2 {
		if _, _, err := fleet.Get(t.Context(), client, "key"); err != nil {
			t.Fatal(err)
		}
		<-time.After(45 * time.Second) // the fourth ping of an idle connection closes it, after 40
	}
	if n := link.Opened(); n != 1 {
		t.Errorf("%d connections were opened for calls that one can carry", n)
	}
}
