package signin

import (
	"net/url"
	"strings"
	"testing"
)

func TestParameter(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"boxgate_token=abc":                     "abc",
		"a=b&boxgate_token=a%2Bc&c=d":           "a+c",
		"":                                      "",
		"boxgate_token":                         "",
		"boxgate_token=%zz":                     "",
		"boxgate_token=a&boxgate_token=a":       "",
		"xboxgate_token=a":                      "",
		"a=boxgate_token=a":                     "",
		"Boxgate_token=a&boxgate_tokens=b":      "",
		"boxgate_link=a":                        "",
		"%62oxgate_token=a":                     "",
		"a=1;boxgate_token=b":                   "",
		"boxgate_token=abc&boxgate_token_=d&&&": "abc",
	} {
		if got, _ := Parameter(query, TokenParameter); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"/a?boxgate_token=x":                       "/a",
		"/a?b=c&boxgate_token=x&d":                 "/a?b=c&d",
		"/a?boxgate_link=x&boxgate_token=y&b=%20":  "/a?b=%20",
		"/a?b=boxgate_token&boxgate_other=1":       "/a?b=boxgate_token",
		"/boxgate_token=x":                         "/boxgate_token=x",
		"/a?":                                      "/a?",
		"/a?boxgate_token":                         "/a",
		"https://h/a?x=1&boxgate_link=y":           "https://h/a?x=1",
		"/a?boxgate_token=a&boxgate_token=b&b?c=d": "/a?b?c=d",
		"/a?boxgate%5Ftoken=x&b":                   "/a?b",
		"/a?boxgate%5ftok%65n=x&b":                 "/a?b",
		"/a?%42OXGATE_token%3Dx&b":                 "/a?b",
		"/a?b;boxgate_token=x;c&d":                 "/a?b;c&d",
		"/a?boxgate_token=x;c&d":                   "/a?c&d",
		"/a?Boxgate_Token=x&b=%62oxgate_&c=%zz":    "/a?b=%62oxgate_&c=%zz",
		"/a?+%20boxgate_token=x":                   "/a",
		"/a?boxgate_token[]=x&;":                   "/a?;",
		"/a?b=1;boxgate=2&%&boxgate%5&boxgate-t=x": "/a?b=1;boxgate=2&%&boxgate%5&boxgate-t=x",
	} {
		if got := Clean(target); got != want {
			t.Errorf("%q: %q, want %q", target, got, want)
		}
	}
}

// A sign-in always returns to its own host.
func TestLocal(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"/a?b=c#d": "/a?b=c#d", "/": "/", "": "/", "a": "/", "//evil.example/x": "/.//evil.example/x", `/\evil.example`: `/./\evil.example`,
		"https://evil.example/": "/", "/\t/evil.example": "/", "/\r\nSet-Cookie: a=b": "/", "/ü": "/", "/.boxgate/sign-out": "/",
		"javascript:alert(1)": "/", "/" + strings.Repeat("a", 5000): "/",
	} {
		if got := Local(next, "/.boxgate/"); got != want {
			t.Errorf("%q: %q, want %q", next, got, want)
		}
	}
}

func FuzzLocal(f *testing.F) {
	for _, s := range []string{"//a", `/\a`, "/a//b", "/.//a", "///a", "/?//a"} {
		f.Add(s)
	}
	base, _ := url.Parse("https://own.example/x/y")
	f.Fuzz(func(t *testing.T, next string) {
		// Browsers interpret a backslash as a slash.
		to, err := base.Parse(strings.ReplaceAll(Local(next, "/.boxgate/"), `\`, "/"))
		if err == nil && (to.Host != "own.example" || to.Scheme != "https") {
			t.Errorf("%q leads to %s", next, to)
		}
	})
}

func FuzzClean(f *testing.F) {
	for _, target := range []string{"/a?boxgate_token=x&b", "/?b;Boxgate%5flink=x&+%62oxgate_token;c"} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		clean := Clean(target)
		if _, query, _ := strings.Cut(clean, "?"); clean != Clean(clean) {
			t.Errorf("%q is cleaned to %q", target, clean)
		} else if value, ok := Parameter(query, TokenParameter); ok {
			t.Errorf("%q keeps the token %q", target, value)
		}
		if has := HasOwn([]byte(target)); has != (len(clean) < len(target)) {
			t.Errorf("%q has parameters of the gateway: %v; it is cleaned to %q", target, has, clean)
		}
		_, query, _ := strings.Cut(clean, "?")
		for _, separators := range []string{"&", ";", "&;"} {
			for _, p := range strings.FieldsFunc(query, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
				name, err := url.QueryUnescape(p)
				if err == nil && strings.HasPrefix(strings.ToLower(strings.TrimLeft(name, " ")), prefix) {
					t.Errorf("%q keeps %q", target, p)
				}
			}
		}
	})
}

func TestParseForm(t *testing.T) {
	t.Parallel()
	got, ok := ParseForm([]byte("token=+a%2Bb%0A&username=u&password=+p&next=%2Fx"))
	if want := (Form{Token: "a+b", User: "u", Password: " p", Next: "/x"}); !ok || got != want {
		t.Errorf("%+v", got)
	}
	if _, ok := ParseForm([]byte("token=%zz")); ok {
		t.Error("a broken form is read")
	}
}
