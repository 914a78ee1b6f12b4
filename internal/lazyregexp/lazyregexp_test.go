package lazyregexp

import (
	"regexp"
	"slices"
	"sync"
	"testing"
)

// TestAgreesWithRegexp compares with the library, from several goroutines at once.
func TestAgreesWithRegexp(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{`^a{1,100}$`, `(b)(c)?`, `^$`} {
		lazy, want := New(expr), regexp.MustCompile(expr)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for _, s := range []string{"", "a", "aab", "bc", "b"} {
					if lazy.MatchString(s) != want.MatchString(s) {
						t.Errorf("%s: MatchString(%q) is %v", expr, s, lazy.MatchString(s))
					}
					if got := lazy.FindStringSubmatch(s); !slices.Equal(got, want.FindStringSubmatch(s)) {
						t.Errorf("%s: FindStringSubmatch(%q) is %q", expr, s, got)
					}
				}
			})
		}
		all.Wait()
		if lazy.String() != expr {
			t.Errorf("String() is %q; want %q", lazy.String(), expr)
		}
	}
}

// TestInvalid: an invalid expression does not stop the program before it is used.
func TestInvalid(t *testing.T) {
	t.Parallel()
	lazy := New(`(`)
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression was used without a panic")
		}
	}()
	lazy.MatchString("")
}
