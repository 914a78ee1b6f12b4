package fidelity

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/scrub"
)

const reflected = "sk-live/c4n4ry+0123456789=="

// scrubbing returns a box under a rule with scrub, and servers of every version that reflect their requests.
func scrubbing(t *testing.T) *fidelity {
	f := newFidelity(t, nil)
	f.page("/reflect", testnet.Reflect)
	err := f.Client.Do(t.Context(), "PUT", api.BoxPath(f.Box, "config/attach-headers"), map[string]any{
		"*.example.com": map[string]any{"headers": map[string]string{"Authorization": "Bearer " + reflected}, "scrub": true},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// findToken returns the encoding in which a text contains most of the token, or "".
func findToken(text string) string {
	for _, form := range testnet.Reflections(reflected) {
		if form = strings.Trim(form, `"=`); strings.Contains(text, form[4:len(form)-4]) {
			return form
		}
	}
	return ""
}

// TestAttackReflectedSecret makes requests with curl from a box to servers that reflect them.
func TestAttackReflectedSecret(t *testing.T) {
	t.Parallel()
	f := scrubbing(t)
	f.eachRoute(intercepted, func(f *fidelity, r route) {
		for _, coding := range []string{"none", "gzip", "deflate", "br", "zstd"} {
			out := f.curl(r, "-i --compressed -H 'Accept-Encoding: "+coding+", x-unknown' -H 'Range: bytes=0-10'", "/reflect/"+coding)
			if form := findToken(out); form != "" {
				f.T.Errorf("%s: %q reaches the box:\n%s", coding, form, out)
			}
			if n := strings.Count(out, "\n<"); n != len(testnet.Reflections(reflected)) || !strings.Contains(strings.ToLower(out), "x-reflect: bearer "+strings.Repeat("*", len(reflected))+"\r\n") {
				f.T.Errorf("%s: %d lines:\n%s", coding, n, out)
			}
		}
	})
	if got := f.Net.Received("api.example.com", testnet.Of(testnet.Request)); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	out := f.run("curl -sS https://api.example.com/reflect/gzip --compressed")
	if got := f.Net.Received("api.example.com", testnet.Of(testnet.Request)); len(got) != 1 || got[0].Header.Get("Authorization") != "Bearer "+reflected || findToken(out) != "" {
		t.Errorf("received %+v, answered %s", got, out)
	}
}

// TestAttackResponseThatCannotBeScrubbed: it is refused, and the box learns the reason but not the content.
func TestAttackResponseThatCannotBeScrubbed(t *testing.T) {
	t.Parallel()
	f := scrubbing(t)
	f.page("/strange", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "rot13")
		fmt.Fprint(w, r.Header.Get("Authorization"))
	})
	f.page("/part", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", "bytes 3-9/100")
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, r.Header.Get("Authorization")[10:])
	})
	f.eachRoute(intercepted, func(f *fidelity, r route) {
		for _, path := range []string{"/strange", "/part"} {
			out := f.curl(r, "-w ' %{http_code}'", path)
			if findToken(out) != "" || !strings.Contains(out, `"unscrubbable"`) || !strings.HasSuffix(out, " 502") {
				f.T.Errorf("%s: %s", path, out)
			}
		}
	})
	f.Event(f.Box, func(e audit.Event) bool {
		return e.Reason == name.ReasonUnscrubbable && e.Verdict == policy.Deny && e.Status == 502 && e.Path == "/part"
	})
}

// TestScrubbedEventsComeAtOnce: the server sends each event when the box requests it after reading the previous one.
func TestScrubbedEventsComeAtOnce(t *testing.T) {
	t.Parallel()
	f := scrubbing(t)
	next := make(chan struct{})
	f.page("/next", func(http.ResponseWriter, *http.Request) { next <- struct{}{} })
	f.page("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d %s\n\n", i, r.Header.Get("Authorization"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	f.eachRoute(intercepted, func(f *fidelity, r route) {
		ask := "curl -sS --max-time 60 " + r.curl + " " + r.url
		out := f.run(ask + "/events -N | for i in 0 1 2; do read -r line; read -r empty; echo \"$line\"; " + ask + "/next; done")
		want := ""
		for i := range 3 {
			want += fmt.Sprintf("data: %d Bearer %s\n", i, strings.Repeat("*", len(reflected)))
		}
		if out != want {
			f.T.Errorf("received %q", out)
		}
	})
}

// TestScrubbedBulk streams 100 MiB in every coding and bounds the gateway's growth.
func TestScrubbedBulk(t *testing.T) {
	t.Parallel()
	f := scrubbing(t)
	for coding, r := range map[string]route{"none": overHTTP1, "gzip": overHTTP1, "br": overHTTP2, "zstd": overDowngrade, "deflate": overHTTP2} {
		if (coding == "gzip" || coding == "deflate") && !nightly.Enabled() {
			continue
		}
		t.Run(coding+" "+r.name, func(t *testing.T) {
			f := f.on(t)
			get := func(mib int) string {
				return f.run(fmt.Sprintf("curl -sS --max-time 100 %s --compressed -H 'Accept-Encoding: %s' '%s/reflect/%s?mib=%d' | openssl dgst -sha256 -r",
					r.curl, coding, r.url, coding, mib))
			}
			small := get(16)
			before := f.resetPeak()
			big := get(100)
			if _, peak := f.memory(); peak-before > grownMax && !harness.RaceDetector() {
				t.Errorf("the gateway grew by %d MiB", (peak-before)>>20)
			} else {
				t.Logf("the gateway grew by %d KiB from %d KiB", (peak-before)>>10, before>>10)
			}
			if want := bulkHash(16); !strings.HasPrefix(small, want) {
				t.Errorf("16 MiB: %s, want %s", small, want)
			}
			if want := bulkHash(100); !strings.HasPrefix(big, want) {
				t.Errorf("100 MiB: %s, want %s", big, want)
			}
		})
	}
}

// bulkHash returns the hash of testnet.Reflect's output with the encodings of the token masked.
func bulkHash(mib int) string {
	sum, set := sha256.New(), scrub.New(scrub.Texts("Bearer "+reflected))
	filler := strings.Repeat("0123456789abcdef%41 ~!?#.", 1<<20/25)
	for i := 0; i <= mib; i++ {
		if i > 0 {
			fmt.Fprint(sum, i, filler)
		}
		for _, form := range testnet.Reflections(reflected) {
			fmt.Fprintf(sum, "<%s>\n", set.MaskString(form))
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
