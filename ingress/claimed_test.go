package ingress

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// usual are the fields of a browser's request and of an application's own client.
var usual = []string{"accept", "accept-language", "user-agent", "cookie", "referer", "sec-ch-ua", "sec-ch-ua-mobile", "sec-ch-ua-platform",
	"sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "priority", "content-type", "origin", "x-csrf-token", "x-request-id", "x-api-key"}

// BenchmarkClaimed checks all fields of a request.
func BenchmarkClaimed(b *testing.B) {
	names := make([][]byte, 0, len(usual))
	for _, n := range usual {
		names = append(names, []byte(n))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, n := range names {
			if claimed(n) {
				b.Fatalf("%s is removed", n)
			}
		}
	}
}

// The comparison does not allocate, whether a field is removed, kept or let through.
func TestFieldsAreJudgedWithoutAllocation(t *testing.T) {
	names := lowered([]string{"X-Auth-Token"})
	removed, kept, let := []byte("X_Forwarded.User"), []byte("x-request-id"), []byte("X-AUTH-Token")
	n := testing.AllocsPerRun(100, func() {
		if !claimed(removed) || lets(names, removed) || claimed(kept) || !claimed(let) || !lets(names, let) {
			t.Error("misjudged")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzClaimed compares the index of names with the lists.
func FuzzClaimed(f *testing.F) {
	for _, names := range [][]string{claimedNames, claimedBeginnings, ordinaryFields, usual} {
		for _, name := range names {
			f.Add(name)
			f.Add(strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + ".Y")
		}
	}
	f.Fuzz(func(t *testing.T, name string) {
		if !httpguts.ValidHeaderFieldName(name) {
			return
		}
		plain := strings.Map(func(r rune) rune {
			if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", r) {
				return r
			}
			return '-'
		}, strings.ToLower(name))
		want := slices.Contains(claimedNames, plain) || slices.ContainsFunc(claimedBeginnings, func(b string) bool { return strings.HasPrefix(plain, b) })
		if got := claimed([]byte(name)); got != want || claimed(name) != want {
			t.Errorf("%q, read as %q: %v, want %v", name, plain, got, want)
		}
	})
}
