package h2

import (
	"slices"
	"testing"
)

// flushed notes which connections were flushed.
type flushed struct {
	name string
	all  *[]string
}

func (f flushed) Flush() { *f.all = append(*f.all, f.name) }

// TestBatch: a batch flushes each of its connections once, in order, and is then empty.
func TestBatch(t *testing.T) {
	var all []string
	var b Batch
	b.Flush()
	names := []string{"a", "b", "c", "d", "e", "f"} // more than have a place in the batch itself
	for range 2 {
		all = nil
		for _, name := range names {
			b.Add(flushed{name, &all})
		}
		if len(all) > 0 {
			t.Errorf("flushed before the end of the batch: %q", all)
		}
		b.Flush()
		b.Flush()
		if !slices.Equal(all, names) {
			t.Errorf("flushed %q", all)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		b.Add(&flushed{all: &all})
		all = all[:0]
		b.Flush()
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
