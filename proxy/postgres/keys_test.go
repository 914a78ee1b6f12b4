package postgres

import (
	"net/netip"
	"testing"

	"boxgate/policy"
)

// TestKeysOfOthers: a key works for the box that was given it, at the host and port that it is for, until its connection has
// ended.
func TestKeysOfOthers(t *testing.T) {
	var keys Keys
	of := backend{"db.example.com:5432", netip.MustParseAddr("192.0.2.1"), 77, []byte("real")}
	c := keys.add("box1", of)
	other := c
	other.key[0]++
	for what, found := range map[string]bool{
		"another box":  has(&keys, "box2", of.authority, c),
		"another host": has(&keys, "box1", "other.example.com:5432", c),
		"another key":  has(&keys, "box1", of.authority, other),
		"the server's": has(&keys, "box1", of.authority, cancel{77, [4]byte([]byte("real"))}),
	} {
		if found {
			t.Errorf("%s: the key is known", what)
		}
	}
	if got, ok := keys.find("box1", of.authority, c); !ok || got.process != 77 || string(got.key) != "real" {
		t.Errorf("%+v, %v", got, ok)
	}
	keys.remove(c)
	if has(&keys, "box1", of.authority, c) {
		t.Error("the key outlives its connection")
	}
}

func has(k *Keys, box, authority string, c cancel) bool {
	_, ok := k.find(policy.BoxID(box), authority, c)
	return ok
}
