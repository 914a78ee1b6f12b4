package origin

import (
	"fmt"
	"testing"

	"boxgate/internal/memory"
	"boxgate/policy"
)

// TestHostsRememberedAreBounded names ever new hosts that speak HTTP/1.1 alone.
func TestHostsRememberedAreBounded(t *testing.T) {
	t.Parallel()
	p := newBoxPool(4, memory.New(1<<20, 1<<20).Account("box"))
	for i := range 100 {
		n, err := policy.ParseName(fmt.Sprintf("h%d.example.com", i))
		if err != nil {
			t.Fatal(err)
		}
		o, err := p.reserve(key{name: n}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.dialled(o.place, nil, true)
		o.place.release()
		if len(p.hosts) > 8 {
			t.Fatalf("%d hosts", len(p.hosts))
		}
	}
}
