package origin

import (
	"fmt"
	"testing"

	"boxgate/policy/name"
)

func TestMemoryOfHostsIsBounded(t *testing.T) {
	t.Parallel()
	var h hosts
	for i := range 3 * maxHosts {
		hostName, err := name.Parse(fmt.Sprintf("n%d.example", i))
		if err != nil {
			t.Fatal(err)
		}
		at := host{hostName, 443}
		h.needsSmall(at)
		h.noteOffer(at, "something")
		h.noteLogin(at)
		if _, known := h.offer(at); !h.small(at) || !known || !h.login(at) || h.small(host{hostName, 444}) || h.login(host{hostName, 444}) {
			t.Fatal("the latest host is not known")
		}
	}
	if len(h.hellos) != maxHosts || len(h.offers) != maxHosts || len(h.logins) != maxHosts {
		t.Errorf("%d, %d and %d hosts are known, want %d", len(h.hellos), len(h.offers), len(h.logins), maxHosts)
	}
	var gone *hosts
	gone.needsSmall(host{})
	gone.noteOffer(host{}, "")
	gone.noteLogin(host{})
	if _, known := gone.offer(host{}); gone.small(host{}) || known || gone.login(host{}) {
		t.Error("a box that is gone is known")
	}
}
