package policy

import (
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/policy/name"
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
		if !isAmbiguous(p) {
			t.Errorf("%q passes", p)
		}
	}
	for _, p := range []string{
		"/", "*", "/a", "/a/", "/a/b.c", "/.well-known/x", "/a/..b", "/...", "/.../a", "/a..", "/~user", "/%7Euser", "/a%20b", "/users/me%40example.com", "/a,b=c:d@e!$&'()*+",
		"/%E4%BE%8B", "/caf%C3%A9", "/%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB", "/a%26b%3Dc%2Bd", "/%22%3C%3E%5B%5D%5E%60%7B%7C%7D", "/-_.~", "/a-b_c",
	} {
		if isAmbiguous(p) {
			t.Errorf("%q is refused", p)
		}
	}
}

// readings are the ways in which servers read a path: as it is, decoded once, by net/url and path.Clean, and by replacing
// backslashes and merging slashes as well.
func readings(t *testing.T, p string) []string {
	t.Helper()
	u, err := url.ParseRequestURI("http://a.test" + p)
	if err != nil || u.RawQuery != "" {
		t.Fatalf("%q passes, and net/url says %v", p, err)
	}
	clean := path.Clean(u.Path)
	if strings.HasSuffix(u.Path, "/") && clean != "/" {
		clean += "/"
	}
	once, err := url.PathUnescape(p)
	if err != nil {
		t.Fatalf("%q: %v", p, err)
	}
	lenient := strings.ReplaceAll(once, `\`, "/")
	for strings.Contains(lenient, "//") {
		lenient = strings.ReplaceAll(lenient, "//", "/")
	}
	lenient, _, _ = strings.Cut(lenient, ";")
	if twice, err := url.PathUnescape(once); err != nil || twice != once {
		t.Fatalf("%q: a server that decodes twice reads %q", p, twice)
	}
	return []string{clean, once, lenient}
}

// FuzzJudgedPaths: what passes is read the same way by every server that decodes, and a request that the rules allow is
// allowed by them in every reading.
func FuzzJudgedPaths(f *testing.F) {
	for _, s := range []string{"/", "/admin", "/admin/x", "/a%20b", "/%7E", "/x/../admin", "/%61dmin", "/admin%2f", "/admin;x", "//admin", "/pub/%2e%2e/admin", "/caf%C3%A9", "/%EF%BC%8Fadmin", "/me%40x"} {
		f.Add(s, "/admin", "/pub/")
	}
	host, _ := name.Parse("a.test")
	f.Fuzz(func(t *testing.T, p, denied, allowed string) {
		c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []RequestRule{
			{Hosts: []string{"a.test"}, Paths: []string{denied}, Action: "deny"},
			{Hosts: []string{"a.test"}, Paths: []string{allowed + "*"}, Action: "allow"},
			{Hosts: []string{"a.test"}, Methods: []string{"POST"}, Action: "deny"},
		}}, nil, name.NewProtected(nil, nil), 1)
		if err != nil || p == "*" || p == "" {
			return
		}
		for _, method := range []string{"GET", "POST"} {
			r := Request{Stage: StageHTTP, Name: host, Port: 443, Protocol: TCP, Method: method, Path: p}
			d := c.Decide(r)
			if d.Reason == name.ReasonAmbiguousPath {
				continue
			}
			read := readings(t, p)
			for _, s := range read[1:] {
				if s != read[0] {
					t.Fatalf("%q passes and is read as %q", p, read)
				}
			}
			if !utf8.ValidString(read[0]) {
				t.Fatalf("%q passes and is read as %q", p, read)
			}
			if !d.Allowed() {
				continue
			}
			for _, s := range []string{p, read[0]} {
				if s == denied || method == "POST" && !strings.HasPrefix(s, allowed) && !strings.HasPrefix(s, unescaped(allowed)) {
					t.Fatalf("%s %q is allowed, and a server reads %q (denied %q, allowed below %q)", method, p, s, denied, allowed)
				}
			}
		}
	})
}

func unescaped(s string) string {
	out, err := url.PathUnescape(s)
	if err != nil {
		return s
	}
	return out
}
