package lru

import (
	"strconv"
	"testing"
)

func want(t *testing.T, c *Cache[string, int], kept map[string]int, gone ...string) {
	t.Helper()
	for k, v := range kept {
		if got, ok := c.Get(k); !ok || got != v {
			t.Errorf("%s: %d %v; want %d", k, got, ok, v)
		}
	}
	for _, k := range gone {
		if got, ok := c.Get(k); ok {
			t.Errorf("%s is still there: %d", k, got)
		}
	}
}

func TestTheLeastRecentlyUsedIsEvicted(t *testing.T) {
	t.Parallel()
	c := New[string, int](3)
	for i, k := range []string{"a", "b", "c"} {
		c.Put(k, i, 1)
	}
	c.Get("a")
	c.Put("d", 3, 1)
	want(t, c, map[string]int{"a": 0, "c": 2, "d": 3}, "b")
	c.Put("e", 4, 3)
	want(t, c, map[string]int{"e": 4}, "a", "c", "d")
}

func TestAPutReplacesTheValueAndItsCost(t *testing.T) {
	t.Parallel()
	c := New[string, int](4)
	c.Put("a", 1, 3)
	c.Put("a", 2, 1)
	c.Put("b", 3, 3)
	want(t, c, map[string]int{"a": 2, "b": 3})
}

func TestAValueAboveTheLimitIsNotKept(t *testing.T) {
	t.Parallel()
	c := New[string, int](4)
	c.Put("a", 1, 1)
	c.Put("b", 2, 1)
	c.Put("b", 3, 5) // the replaced value is dropped too
	want(t, c, map[string]int{"a": 1}, "b")
	for i := range 1000 {
		c.Put(strconv.Itoa(i), i, 1)
	}
	if len(c.items) != 4 || c.order.Len() != 4 || c.cost != 4 {
		t.Errorf("%d values, %d in order, cost %d", len(c.items), c.order.Len(), c.cost)
	}
}

func TestTheZeroValueKeepsNothing(t *testing.T) {
	t.Parallel()
	var c Cache[string, int]
	c.Put("a", 1, 1)
	want(t, &c, nil, "a")
}
