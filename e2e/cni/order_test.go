package cni

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"boxgate/internal/nightly"
)

// Calls of the only plugin, each twice in any order: ADD succeeds for a pod that is not attached, CHECK for one that is, and DEL and GC
// always. At the end no trace is left.
func TestCallsInAnyOrder(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, false, nil)
	before := n.trace()
	for seed := range nightly.Size(4, 40) {
		r := rand.New(rand.NewPCG(uint64(seed), 38))
		calls := slices.Repeat([]string{"add", "check", "del", "gc"}, 2)
		r.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		p := n.webPod()
		attached := false
		for i, call := range calls {
			want := call != "add" && call != "check" || call == "add" != attached
			out, code := p.tool(call)
			if (code == 0) != want {
				t.Errorf("seed %d: %q, call %d: %d %s", seed, calls, i+1, code, out)
			}
			attached = call == "add" || call == "check" && attached
			if has := slices.Contains(p.links(), "eth0"); has != attached {
				t.Errorf("seed %d: %q, after call %d: eth0 is %v", seed, calls, i+1, has)
			}
		}
		p.must("gc")
		if after := n.trace(); after != before {
			t.Fatalf("seed %d: %q left:\n%s\nbefore:\n%s", seed, calls, after, before)
		}
		p.end()
	}
}

// GC of one network keeps the attachments of another.
func TestGCKeepsOtherNetworks(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, false, nil)
	p := n.webPod()
	p.must("add")
	mine := n.name
	n.name = mine + "-x"
	n.write(false)
	p.must("gc")
	n.name = mine
	p.must("check")
	p.must("gc")
	p.fails("check", "is not attached")
}

// Pods that start and end at the same time leave no link, rule, route, pin or address.
func TestManyPodsLeaveNoTrace(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, true, nil)
	n.newPod(nil).must("add")
	before := n.trace()
	const together = 10
	for round := range nightly.Size(2, 50) {
		pods := make([]*pod, together)
		for i := range pods {
			pods[i] = n.webPod()
		}
		var all sync.WaitGroup
		errs := make(chan string, 2*together)
		for _, p := range pods {
			all.Go(func() {
				if out, code := p.tool("add"); code != 0 {
					errs <- fmt.Sprintf("add: %d %s", code, out)
				}
				if out, code := p.tool("del"); code != 0 {
					errs <- fmt.Sprintf("del: %d %s", code, out)
				}
				p.end()
			})
		}
		all.Wait()
		close(errs)
		for err := range errs {
			t.Errorf("round %d: %s", round, err)
		}
		if after := n.trace(); after != before {
			t.Fatalf("round %d left:\n%s\nbefore:\n%s", round, after, before)
		}
	}
}
