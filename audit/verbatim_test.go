package audit

import (
	"strings"
	"testing"
)

// Each byte counts, at any position and length of a text.
func TestVerbatimIsByteByByte(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		for at := range n {
			for c := range 256 {
				s := strings.Repeat("a", at) + string([]byte{byte(c)}) + strings.Repeat("~", n-at-1)
				for _, lowest := range []byte{' ', '!'} {
					want := c >= int(lowest) && c <= '~' && c != '"' && c != '\\'
					if isVerbatim(s, n, lowest) != want {
						t.Fatalf("%q from %q on: %v", s, lowest, !want)
					}
				}
			}
		}
		if s := strings.Repeat("a", n); !isVerbatim(s, n, '!') || isVerbatim(s, n-1, '!') {
			t.Errorf("the limit does not hold for %d bytes", n)
		}
	}
}
