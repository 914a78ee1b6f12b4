package postgres

import (
	"net/netip"
	"testing"

	"boxgate/policy"
)

// TestKeysOfOthers: a key works only for the box that received it, at its host and port, until its connection is closed.
func TestKeysOfOthers(t *testing.T) {
	var keys Keys
	of := backend{"db.example.com:5432", netip.MustParseAddr("192.0.2.1"), 77, []byte("real")}
	c := keys.add("box1", of, shortKey)
	other := cancel{77, []byte{c.key[0] + 1, c.key[1], c.key[2], c.key[3]}}
	for what, found := range map[string]bool{
		"another box":     has(&keys, "box2", of.authority, c),
		"another host":    has(&keys, "box1", "other.example.com:5432", c),
		"another key":     has(&keys, "box1", of.authority, other),
		"part of the key": has(&keys, "box1", of.authority, cancel{77, c.key[:3]}),
		"more":            has(&keys, "box1", of.authority, cancel{77, append(c.key[:4:4], 0)}),
		"another process": has(&keys, "box1", of.authority, cancel{78, c.key}),
		"the server's":    has(&keys, "box1", of.authority, cancel{77, []byte("real")}),
	} {
		if found {
			t.Errorf("%s: the key is known", what)
		}
	}
	if got, ok := keys.find("box1", of.authority, c); !ok || got.process != 77 || string(got.key) != "real" || c.process != 77 {
		t.Errorf("%+v, %v", got, ok)
	}
	keys.remove("box1", of.authority, c)
	if has(&keys, "box1", of.authority, c) || len(keys.keys) > 0 {
		t.Error("the key outlives its connection")
	}
}

// TestKeysOfEqualProcesses: two servers behind one name have a connection with the same process ID each, for two boxes.
func TestKeysOfEqualProcesses(t *testing.T) {
	var keys Keys
	const authority = "db.example.com:5432"
	given := map[policy.BoxID][]cancel{}
	for i, box := range []policy.BoxID{"box1", "box1", "box2", "box2"} {
		of := backend{authority, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 77, []byte{byte(i)}}
		given[box] = append(given[box], keys.add(box, of, longKey))
	}
	for i, box := range []policy.BoxID{"box1", "box1", "box2", "box2"} {
		c := given[box][i%2]
		if got, ok := keys.find(box, authority, c); !ok || got.key[0] != byte(i) || got.addr.As4()[3] != byte(i) || len(c.key) != longKey {
			t.Errorf("%d: %+v, %v", i, got, ok)
		}
	}
	keys.remove("box1", authority, given["box1"][0])
	if has(&keys, "box1", authority, given["box1"][0]) || !has(&keys, "box1", authority, given["box1"][1]) || !has(&keys, "box2", authority, given["box2"][0]) {
		t.Error("closing a connection removed another's key, or did not remove its own")
	}
}

func has(k *Keys, box policy.BoxID, authority string, c cancel) bool {
	_, ok := k.find(box, authority, c)
	return ok
}
