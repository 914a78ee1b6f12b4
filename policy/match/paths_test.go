package match

import (
	"strings"
	"testing"
)

// TestAmbiguousPaths: what servers read in different ways, and what they all read alike.
func TestAmbiguousPaths(t *testing.T) {
	t.Parallel()
	for _, p := range []string{
		"", "a", "//", "//a", "/a//b", "/a//", "/.", "/..", "/./a", "/a/.", "/a/./b", "/a/..", "/a/../b", "/../a", "/a/b/../../c",
		`/a\b`, `/a\..\b`, "/a%2fb", "/a%2Fb", "/a%5cb", "/a%5C..%5Cb", "/%2e%2e/a", "/%2E", "/.%2e/a", "/a.%2E", "/a%2ehtml",
		"/a%252fb", "/%25%32%66", "/a%25", "/a%", "/a%2", "/a%zz", "/a%2g", "/a%00", "/a%00.png", "/a%0a", "/a%0D%0A", "/a%1f", "/a%7f", "/a%09",
		"/a;b", "/a;v=1/b", "/;/admin", "/a/..;/b", "/a%3bb", "/a%3Bx", "/a%3fb", "/a%23b", "/%61dmin", "/%41", "/%30", "/%2D", "/%5f",
		"/\xc3\xa9", "/\xff", "/\x80", "/%ff", "/%c0%af", "/%c0%ae%c0%ae/", "/%e0%80%af", "/%c1%9c", "/%ed%a0%80", "/%f8%80%80%80%af", "/%c3",
		"/%ef%bc%8f", "/%EF%BC%8E%EF%BC%8E/", "/%e2%88%95", "/%ef%bc%bc", "/%e2%80%a5/", "/%c2%85", "/a b", "/a\tb", "/a\x00", "/a#b",
	} {
		if !IsAmbiguous(p) {
			t.Errorf("%q passes", p)
		}
	}
	for _, p := range []string{
		"/", "*", "/a", "/a/", "/a/b.c", "/.well-known/x", "/a/..b", "/...", "/.../a", "/a..", "/~user", "/%7Euser", "/a%20b", "/users/me%40example.com", "/a,b=c:d@e!$&'()*+",
		"/%E4%BE%8B", "/caf%C3%A9", "/%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB", "/a%26b%3Dc%2Bd", "/%22%3C%3E%5B%5D%5E%60%7B%7C%7D", "/-_.~", "/a-b_c",
	} {
		if IsAmbiguous(p) {
			t.Errorf("%q is refused", p)
		}
	}
}

// FuzzResolvePath: resolving ends, leaves no way up, and changes nothing the second time once nothing is encoded.
func FuzzResolvePath(f *testing.F) {
	for _, s := range []string{"/", "/a/../b", "/a/%2e%2e/b", "//a", `/a\..\b`, "/a/.", "/a/..", "/%", "/%zz", "*", "", "/..a", "/.../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		clean := resolvePath(s)
		if strings.Contains(clean, "//") || strings.HasSuffix(clean, "/..") || strings.Contains(clean, "/../") {
			t.Fatalf("%q resolves to %q", s, clean)
		}
		if !strings.Contains(clean, "%") && resolvePath(clean) != clean {
			t.Fatalf("%q resolves to %q and then to %q", s, clean, resolvePath(clean))
		}
	})
}
