package namespace

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// listings returns a list function whose nth call returns the nth part, and the last one from then on. Listings before the one with the
// given number are interrupted.
func listings(whole int, parts ...[]int) (list func() ([]int, error), calls *int) {
	calls = new(int)
	return func() ([]int, error) {
		*calls++
		part := parts[min(*calls, len(parts))-1]
		if *calls < whole {
			return part, netlink.ErrDumpInterrupted
		}
		return part, nil
	}, calls
}

// A list is as of one moment if any listing was.
func TestWholeReadsAgainAfterInterruptions(t *testing.T) {
	list, calls := listings(3, []int{1}, []int{2}, []int{1, 2, 3})
	if got, err := Whole(list); err != nil || !slices.Equal(got, []int{1, 2, 3}) || *calls != 3 {
		t.Errorf("%v, %v after %d listings", got, err, *calls)
	}
	list, calls = listings(wholeTries+1, []int{1}, []int{2})
	if got, err := Whole(list); !errors.Is(err, netlink.ErrDumpInterrupted) || *calls != wholeTries {
		t.Errorf("%v, %v after %d listings", got, err, *calls)
	}
}

// An element that stays is found even if every listing is interrupted, and each misses another one. Elements of interrupted listings do
// not count once there is a whole one.
func TestSeenFindsWhatStays(t *testing.T) {
	list, _ := listings(wholeTries+1, []int{1, 2}, []int{2, 3}, []int{1, 3})
	got, err := Seen(list)
	slices.Sort(got)
	if got = slices.Compact(got); !errors.Is(err, netlink.ErrDumpInterrupted) || !slices.Equal(got, []int{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	list, _ = listings(2, []int{1, 2}, []int{2, 3})
	if got, err := Seen(list); err != nil || !slices.Equal(got, []int{2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	broken := errors.New("no permission")
	if got, err := Seen(func() ([]int, error) { return []int{1}, broken }); !errors.Is(err, broken) {
		t.Errorf("%v, %v", got, err)
	}
}
