package usage

import (
	"testing"

	"boxgate/policy"
)

// The first look at a full disk finds exactly the boxes that have filled it since the last look while it was nearly full.
func TestBoxesThatFillTheDiskAreFoundAtOnce(t *testing.T) {
	t.Parallel()
	k := DiskGuard{writtenBefore: map[policy.BoxID]int64{}}
	for _, look := range []struct {
		full  bool
		wrote map[policy.BoxID]int64
		fills map[policy.BoxID]bool
	}{
		{full: false, wrote: map[policy.BoxID]int64{"fast": 10 << 20, "slow": 50 << 20, "once": 0}},
		{full: false, wrote: map[policy.BoxID]int64{"fast": 20 << 20, "slow": 50<<20 + 1, "once": 30 << 20}},
		{full: true, wrote: map[policy.BoxID]int64{"fast": 30 << 20, "slow": 50<<20 + 2, "once": 30 << 20, "new": 5 << 20}, fills: map[policy.BoxID]bool{"fast": true}},
		{full: true, wrote: map[policy.BoxID]int64{"slow": 51<<20 + 1, "once": 30 << 20, "new": 7 << 20}, fills: map[policy.BoxID]bool{"slow": true, "new": true}},
	} {
		for id, written := range look.wrote {
			if got := k.isFilling(id, written, look.full); got != look.fills[id] {
				t.Errorf("%s fills the disk: %t, although it has written %d bytes", id, got, written)
			}
		}
	}
}
