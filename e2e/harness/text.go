package harness

import (
	"strings"
	"testing"
)

// Contains fails the test unless text contains every part.
func Contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in:\n%s", p, text)
		}
	}
}

// Tail returns the last n bytes of s.
func Tail(s string, n int) string {
	if len(s) > n {
		return s[len(s)-n:]
	}
	return s
}

// Output returns what a command printed, whatever its exit code: for calls such as [World.Sh].
func Output(s string, _ int) string { return s }
