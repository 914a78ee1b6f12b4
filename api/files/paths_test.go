package files

import (
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/api"
)

// FuzzResolve checks that an accepted path is absolute, ends with the given text, and is short enough for the kernel.
func FuzzResolve(f *testing.F) {
	for _, path := range []string{"", "a", "/etc/passwd", "../../etc", "a//b/./c/", "\xff\x00", strings.Repeat("n/", 3000), "/"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := resolve("path", text, false)
		if err != nil {
			return
		}
		if !strings.HasPrefix(got, "/") || !strings.HasSuffix(got, text) || len(got) > maxPath || strings.ContainsRune(got, 0) {
			t.Errorf("%q became %q", text, got)
		}
		if !strings.HasPrefix(text, "/") && !strings.HasPrefix(got, api.Workspace+"/") {
			t.Errorf("%q became %q", text, got)
		}
		if !utf8.ValidString(displayPath(got)) {
			t.Errorf("%q is shown as %q", got, displayPath(got))
		}
	})
}
