package worker

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestNamesOfOwners: the first valid name of an ID counts; a name that could be taken for an ID or harm a terminal is no name.
func TestNamesOfOwners(t *testing.T) {
	got := parseNames([]byte("root:x:0:0:root:/root:/bin/sh\nother:x:0:\n\nshort\n1000:x:1000:\nbox user:x:1001:\nesc\x1b[31m:x:1002:\nbad\xff:x:1003:\n" +
		strings.Repeat("n", 33) + ":x:1004:\nbad:x:-1:\nbad:x:4294967296:\nlast:x:4294967295"))
	if len(got) != 2 || got[0] != "root" || got[4294967295] != "last" {
		t.Errorf("%v", got)
	}
	if name := nameIn(got, 1000); name != "1000" {
		t.Errorf("an ID without a name is %q", name)
	}
}

// TestOwnersOutsideTheBox: IDs are shown as the box knows them, and IDs of others as the overflow ID.
func TestOwnersOutsideTheBox(t *testing.T) {
	first := uint32(os.Getuid()) &^ (idRange - 1)
	for host, want := range map[uint32]uint32{first: 0, first + 1000: 1000, first + idRange: overflowID, first - 1: overflowID} {
		if got := inside(host); got != want {
			t.Errorf("%d of the host is %d in the box, want %d", host, got, want)
		}
	}
}

// FuzzParseNames: every name is short, valid and printable, whatever the box has written.
func FuzzParseNames(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\nboxuser:x:1000:\n"))
	f.Add([]byte(":::\n::0:\n\xff:x:1:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for id, name := range parseNames(data) {
			if len(name) == 0 || len(name) > maxOwner || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\x1b\n :") {
				t.Errorf("%d is named %q", id, name)
			}
		}
	})
}
