package usage

import (
	"testing"
)

// Users that take all they can get leave some for later users with few, and the total is never exceeded.
func TestSharesLeaveRoomForTheOthers(t *testing.T) {
	t.Parallel()
	for _, total := range []int{8, 100, 4096} {
		held := map[int]int{}
		open := 0
		fill := func(who, want int) {
			for range want {
				if !Room(held[who], open, total, len(held)) {
					return
				}
				held[who]++
				open++
			}
		}
		fill(0, 10*total) // two that take all they get
		fill(1, 10*total)
		for who := 2; who < 2+total/16; who++ {
			if fill(who, 1); held[who] != 1 {
				t.Errorf("of %d, two boxes got %d and %d, and box %d none", total, held[0], held[1], who)
			}
		}
		if open > total {
			t.Errorf("%d of %d are in use", open, total)
		}
		if held[0] < total/2 {
			t.Errorf("of %d, the first box got %d", total, held[0])
		}
	}
	if !Room(1<<30, 1<<30, 0, 1) {
		t.Error("a limit applies although none is set")
	}
}
