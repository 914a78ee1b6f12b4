package ingress

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/ingress/access"
)

// A neighbour's page sets cookies for the domain that all URLs share. Browsers do not recognize the gateway's prefix in their
// names, but a parser that trims every kind of space would. These cookies neither sign a visitor in nor hide the real cookie.
func TestCookiesOfANeighbour(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		f := start(t, nil)
		f.guarded("one", record(t))
		c := f.client(t, h2)
		good := signIn(t, c, "one")
		for _, space := range []string{"\u2000", "\u00a0", "\u0085", "\u3000"} {
			for line, want := range map[string]int{
				strings.Repeat(space+access.Cookie+"=x; ", 4) + good: 200,
				space + good:            401,
				"a=b; " + space + good:  401,
				"a=b; \t" + good + "; ": 200,
			} {
				resp, _ := get(t, c, "https://one"+domain+"/", func(r *http.Request) { r.Header["Cookie"] = []string{line} })
				if resp.StatusCode != want {
					t.Errorf("h2 %v, %q: %s, want %d", h2, line, resp.Status, want)
				}
			}
		}
	}
}
