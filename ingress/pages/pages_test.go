package pages

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"boxgate/policy/name"
)

// all are the notices that visitors can get.
func all() map[string]Notice {
	notices := map[string]Notice{
		"sign-in": {Status: 401, Reason: name.ReasonURLAuth, Detail: "This public URL needs a credential.",
			Form: &Form{Bearer: true, Basic: true, Provider: true, Next: "/a?b=c"}},
		"failed":     {Status: 401, Reason: name.ReasonURLAuth, Form: &Form{Bearer: true, Failed: true}},
		"signed out": {Status: 200, Detail: "You are signed out."},
	}
	for _, status := range []int{400, 401, 403, 404, 408, 421, 429, 502, 503, 504} {
		notices[strconv.Itoa(status)] = Notice{Status: status, Reason: name.ReasonURLAuth, Detail: "What is wrong."}
	}
	return notices
}

func sent(fields [][2]string, name string) string {
	for _, f := range fields {
		if strings.EqualFold(f[0], name) {
			return f[1]
		}
	}
	return ""
}

// elements returns the elements of a page with their attributes. Every element is closed by its own end tag.
func elements(t *testing.T, page string) (list []html.Token) {
	t.Helper()
	var open []string
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		switch z.Next() {
		case html.ErrorToken:
			if !errors.Is(z.Err(), io.EOF) || len(open) > 0 {
				t.Errorf("%v, with %v open", z.Err(), open)
			}
			return list
		case html.StartTagToken:
			token := z.Token()
			list = append(list, token)
			if token.Data != "meta" && token.Data != "input" {
				open = append(open, token.Data)
			}
		case html.EndTagToken:
			if name := z.Token().Data; len(open) == 0 || open[len(open)-1] != name {
				t.Errorf("</%s> with %v open", name, open)
			} else {
				open = open[:len(open)-1]
			}
		}
	}
}

func attribute(token html.Token, name string) string {
	for _, a := range token.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// Each page declares its language, has a title and one heading, labels its inputs, loads no resources, runs no scripts, and is
// sent with a policy that allows only its own style.
func TestPagesAreSmallAccessibleAndSelfContained(t *testing.T) {
	t.Parallel()
	for name, n := range all() {
		fields, body := n.Page()
		page, count, labelled := string(body), map[string]int{}, map[string]bool{}
		for _, e := range elements(t, page) {
			count[e.Data]++
			switch e.Data {
			case "html":
				if attribute(e, "lang") != "en" {
					t.Errorf("%s has no language", name)
				}
			case "label":
				labelled[attribute(e, "for")] = true
			case "input":
				if id := attribute(e, "id"); attribute(e, "type") != "hidden" && !labelled[id] {
					t.Errorf("%s: the input %q has no label", name, id)
				}
			case "form", "a":
				if to := attribute(e, "action") + attribute(e, "href"); !strings.HasPrefix(to, Reserved) {
					t.Errorf("%s leads to %q", name, to)
				}
			}
		}
		for _, never := range []string{"script", "link", "img", "iframe", "object", "base"} {
			if count[never] > 0 {
				t.Errorf("%s has a %s", name, never)
			}
		}
		for _, once := range []string{"title", "h1", "main", "style"} {
			if count[once] != 1 {
				t.Errorf("%s has %d of %s", name, count[once], once)
			}
		}
		if len(page) > 6<<10 || strings.Contains(page, "url(") || strings.Contains(page, "@import") || strings.Contains(page, "://") {
			t.Errorf("%s is large, or loads something: %d bytes", name, len(page))
		}
		sum := sha256.Sum256([]byte(regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(page)[1]))
		if csp := sent(fields, "Content-Security-Policy"); !strings.Contains(csp, base64.StdEncoding.EncodeToString(sum[:])) ||
			!strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s is sent with the policy %q", name, csp)
		}
		if sent(fields, "Cache-Control") != "no-store" || sent(fields, "X-Content-Type-Options") != "nosniff" ||
			sent(fields, "X-Frame-Options") != "DENY" || sent(fields, "Cross-Origin-Opener-Policy") != "noopener-allow-popups" {
			t.Errorf("%s: %v", name, fields)
		}
	}
}

// A program gets the same information as a browser.
func TestProgramsGetProblemDetails(t *testing.T) {
	t.Parallel()
	for name, n := range all() {
		fields, body := n.Problem()
		var p struct {
			Title, Detail, Remedy, Reason string
			Status                        int
		}
		if err := json.Unmarshal(body, &p); err != nil || p.Status != n.Status || p.Detail != n.Detail || p.Reason != string(n.Reason) || p.Title != http.StatusText(n.Status) {
			t.Errorf("%s: %s", name, body)
		}
		if (p.Remedy == "") != (n.Status == 200) || sent(fields, "Content-Type") != "application/problem+json" || sent(fields, "Cache-Control") != "no-store" {
			t.Errorf("%s: %v %s", name, fields, body)
		}
	}
}

// The requested path is the only content of a page that the visitor controls.
func TestNothingIsReflectedUnescaped(t *testing.T) {
	t.Parallel()
	for _, next := range []string{`"><script>alert(1)</script>`, `/x" autofocus onfocus="alert(1)`, `'><img src=x onerror=alert(1)>`, "/&quot;&lt;"} {
		_, body := Notice{Status: 401, Form: &Form{Bearer: true, Basic: true, Provider: true, Next: next}}.Page()
		for _, e := range elements(t, string(body)) {
			if e.Data == "script" || e.Data == "img" || attribute(e, "onfocus") != "" || attribute(e, "onerror") != "" {
				t.Errorf("%q became %v", next, e)
			}
			if attribute(e, "name") == FieldNext && attribute(e, "value") != next {
				t.Errorf("%q comes back as %q", next, attribute(e, "value"))
			}
		}
	}
}

func TestOnlyAnApplicationThatWakesIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, n := range all() {
		if _, body := n.Page(); strings.Contains(string(body), `http-equiv="refresh"`) != (n.Status == 503) {
			t.Errorf("%s", name)
		}
	}
}

// Text has at least the contrast of 7 to 1 that WCAG 2.2 (1.4.6) asks for, light and dark.
func TestColorsContrast(t *testing.T) {
	t.Parallel()
	light, dark, _ := strings.Cut(style, "prefers-color-scheme:dark")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		color := map[string]float64{}
		for _, m := range regexp.MustCompile(`--(\w+):#([0-9a-f]+)`).FindAllStringSubmatch(text, -1) {
			color[m[1]] = luminance(t, m[2])
		}
		for _, pair := range [][2]string{{"fg", "bg"}, {"soft", "bg"}, {"bad", "bg"}, {"act", "bg"}, {"on", "act"}} {
			a, b := color[pair[0]], color[pair[1]]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 7 {
				t.Errorf("%s: %s on %s has a contrast of %.1f", scheme, pair[0], pair[1], ratio)
			}
		}
	}
}

// luminance is the relative luminance of a color (WCAG 2.2).
func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
