package origin

import (
	"crypto/tls"
	"fmt"
	"testing"
	"time"

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
		h.offers.note(at, offer{version: tls.VersionTLS11}, time.Hour)
		h.logins.note(at, struct{}{}, 0)
		o, known := h.offers.find(at)
		_, other := h.offers.find(host{hostName, 444})
		_, late := h.logins.find(at)
		if o.version != tls.VersionTLS11 || !known || other || late {
			t.Fatalf("%v, known %v, another port %v, after its time %v", o, known, other, late)
		}
	}
	if len(h.offers.known) != maxHosts || len(h.logins.known) != maxHosts {
		t.Errorf("%d and %d hosts are known, want %d", len(h.offers.known), len(h.logins.known), maxHosts)
	}
}
