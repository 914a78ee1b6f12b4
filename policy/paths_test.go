package policy

import (
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"boxgate/policy/match"
	"boxgate/policy/name"
)

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
		c, err := Compile(Spec{Mode: ModeAllowAll, Rules: []match.RequestRule{
			{Hosts: []string{"a.test"}, Paths: []string{denied}, Action: "deny"},
			{Hosts: []string{"a.test"}, Paths: []string{allowed + "*"}, Action: "allow"},
			{Hosts: []string{"a.test"}, Methods: []string{"POST"}, Action: "deny"},
		}}, Options{Version: 1, Protected: name.NewProtected(nil, nil)})
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
