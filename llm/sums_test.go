package llm

import (
	"fmt"
	"sync"
	"testing"
)

// TestSums: usage is summed up by box and model, also at the same time, and models that a box invents are bounded.
func TestSums(t *testing.T) {
	t.Parallel()
	var s Sums
	one := Usage{Input: 1, Output: 2, CacheRead: 3, CacheWrite: 4, Reasoning: 5, Requests: 1}
	settle := func(box, model string) {
		r, err := s.Reserve(box, "api.test", Call{Model: model})
		if err != nil {
			t.Error(err)
			return
		}
		r.Settle(one, model, true)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { settle("a", "m") })
	}
	all.Wait()
	if got, want := s.Of("a")["m"], (Usage{50, 100, 150, 200, 250, 50}); got != want || len(s.Of("b")) != 0 {
		t.Errorf("%+v, want %+v", got, want)
	}
	for i := range 500 {
		settle("c", fmt.Sprint("m", i))
	}
	if got := s.Of("c"); len(got) != maxSummedModels+1 || got[OtherModels].Requests != 500-maxSummedModels {
		t.Errorf("%d models, %+v others", len(got), got[OtherModels])
	}
	for i := range maxSummedBoxes + 10 {
		settle(fmt.Sprint("box", i), "m")
	}
	if len(s.boxes) != maxSummedBoxes {
		t.Errorf("%d boxes", len(s.boxes))
	}
}
