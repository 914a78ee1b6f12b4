package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

func TestForwardedHeadersAreReplaced(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	forged := "198.51.100.66"
	edits := map[string]func(*http.Request){
		"plainly": func(r *http.Request) {
			for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Server",
				"X-Forwarded", "Forwarded", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip"} {
				r.Header.Set(name, forged)
			}
		},
		"with underscores": func(r *http.Request) {
			r.Header["X_Forwarded_For"] = []string{forged}
			r.Header["x_real_ip"] = []string{forged}
		},
		"named by Connection": func(r *http.Request) {
			r.Header.Set("Connection", "X-Forwarded-For, X-Forwarded-Proto, X-Real-Ip, Forwarded")
			r.Header.Set("X-Forwarded-For", forged)
		},
	}
	for name, edit := range edits {
		for _, h2 := range []bool{false, true} {
			if h2 && name == "named by Connection" {
				continue // HTTP/2 has no Connection
			}
			t.Run(fmt.Sprint(name, ", h2 ", h2), func(t *testing.T) {
				resp, _ := get(t, f.client(t, h2), "https://one"+domain+"/", edit)
				if resp.StatusCode != 200 {
					t.Fatal(resp.Status)
				}
				got := box.last(t)
				if strings.Contains(dump(got), forged) {
					t.Errorf("the client's claim reached the box:\n%s", dump(got))
				}
				want := map[string]string{
					"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "one" + domain,
					"Forwarded": `for=127.0.0.1;host="one.preview.test";proto=https`,
				}
				for name, value := range want {
					if values := got.Header.Values(name); len(values) != 1 || values[0] != value {
						t.Errorf("%s: %q, want %q", name, values, value)
					}
				}
				if got.Host != "one"+domain {
					t.Errorf("Host: %q", got.Host)
				}
			})
		}
	}
}

// The request target arrives as it was sent: path escapes, odd queries, repeated slashes.
func TestTargetIsNotTouched(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	for _, target := range []string{"/", "/a%2Fb/..;/c", "//double", "/q?a=1;b=2&%zz&token=x", "/%E4%B8%96?"} {
		resp := f.raw(t, "GET "+target+" HTTP/1.1\r\nHost: one.preview.test\r\n\r\n")
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %s", target, resp.Status)
		}
		if got := box.last(t).RequestURI; got != target {
			t.Errorf("sent %q, arrived %q", target, got)
		}
	}
	e := f.event(t, func(e audit.Event) bool { return strings.HasPrefix(e.Path, "/q") })
	if e.Path != "/q" || e.Verdict != policy.Allow || e.Reason != name.ReasonURL || e.Status != 200 || e.Action != audit.ActionForward || e.BytesOut == 0 {
		t.Errorf("event: %+v", e)
	}
}

func TestCookiesStayOnTheirHost(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; Domain=preview.test; Path=/; Secure")
		w.Header().Add("Set-Cookie", "b=2; domain =.preview.test")
		w.Header().Add("Set-Cookie", "__Host-boxgate-session=stolen; Path=/")
		w.Header().Set("Alt-Svc", `h3="attacker.example:443"`)
		w.Header().Set("Clear-Site-Data", `"cookies"`)
	}))
	t.Cleanup(server.Close)
	f.expose("one", server, Auth{Open: true})
	for _, h2 := range []bool{false, true} {
		resp, _ := get(t, f.client(t, h2), "https://one"+domain+"/", nil)
		want := []string{"a=1; Path=/; Secure", "b=2"}
		if got := resp.Header["Set-Cookie"]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("cookies %q, want %q", got, want)
		}
		if resp.Header.Get("Alt-Svc") != "" {
			t.Error("Alt-Svc passed")
		}
		if resp.Header.Get("Clear-Site-Data") != "" {
			t.Error("Clear-Site-Data passed")
		}
	}
}

// Bytes are passed on as they arrive, in both directions, over both protocols.
func TestStreams(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: ready\n\n")
		_ = rc.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "data: %s\n\n", lines.Text())
			_ = rc.Flush()
		}
	}))
	t.Cleanup(server.Close)
	f.expose("one", server, Auth{Bearer: digest(BearerDigest("t"))})
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("h2 ", h2), func(t *testing.T) {
			pr, pw := io.Pipe()
			req, _ := http.NewRequest(http.MethodPost, "https://one"+domain+"/", pr)
			req.Header.Set("Authorization", "Bearer t")
			resp, err := f.client(t, h2).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if h2 != (resp.ProtoMajor == 2) {
				t.Fatalf("protocol %s", resp.Proto)
			}
			lines := bufio.NewReader(resp.Body)
			expect := func(want string) {
				t.Helper()
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						t.Fatal(err)
					}
					if line = strings.TrimSpace(line); line == want {
						return
					} else if line != "" {
						t.Fatalf("got %q, want %q", line, want)
					}
				}
			}
			expect("data: ready")
			for _, word := range []string{"one", "two", "three"} {
				if _, err := io.WriteString(pw, word+"\n"); err != nil {
					t.Fatal(err)
				}
				expect("data: " + word)
			}
			pw.Close()
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
		})
	}
}
