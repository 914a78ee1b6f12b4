package attack

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// smuggled is a request that an attacker hides in the body of another.
const smuggled = "GET /smuggled HTTP/1.1\r\nHost: " + harness.OriginName + "\r\n\r\n"

// malformed are requests that are ambiguous to servers. Each follows a valid one on the same connection. HOST is
// replaced by the host of the connection.
var malformed = map[string]string{
	"CL.TE":                           "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE.CL":                           "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + smuggled,
	"TE.TE":                           "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled,
	"TE twice the same":               "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE of several codings":           "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE with identity behind":         "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled,
	"TE with a parameter":             "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n" + smuggled,
	"TE in quotes":                    "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n" + smuggled,
	"TE with a vertical tab":          "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE with a NUL":                   "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\x00\r\n\r\n0\r\n\r\n" + smuggled,
	"TE unknown":                      "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE empty":                        "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n" + smuggled,
	"TE in HTTP/1.0":                  "POST / HTTP/1.0\r\nHost: HOST\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE with an underscore":           "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE behind a space":               "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE behind a fold":                "POST / HTTP/1.1\r\nHost: HOST\r\nX: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE folded":                       "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE behind a bare CR":             "POST / HTTP/1.1\r\nHost: HOST\r\nX: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"TE behind a bare LF":             "POST / HTTP/1.1\r\nHost: HOST\r\nX: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
	"CL twice":                        "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + smuggled,
	"CL twice the same":               "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\ncontent-length: 1\r\n\r\nx",
	"CL as a list":                    "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0, 44\r\n\r\n" + smuggled,
	"CL with a sign":                  "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: +0\r\n\r\n" + smuggled,
	"CL negative":                     "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n" + smuggled,
	"CL hexadecimal":                  "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x0\r\n\r\n" + smuggled,
	"CL with a space inside":          "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4 4\r\n\r\n" + smuggled,
	"CL empty":                        "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length:\r\n\r\n" + smuggled,
	"CL beyond 64 bits":               "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 18446744073709551616\r\n\r\n" + smuggled,
	"CL with an underscore":           "POST / HTTP/1.1\r\nHost: HOST\r\nContent_Length: 0\r\n\r\n" + smuggled,
	"CL behind a space":               "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length : 44\r\n\r\n" + smuggled,
	"CL dropped at this hop":          "POST / HTTP/1.1\r\nHost: HOST\r\nConnection: close, Content-Length\r\nContent-Length: 44\r\n\r\n" + smuggled,
	"Host dropped at this hop":        "GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Host\r\n\r\n",
	"bare LF ends the lines":          "GET / HTTP/1.1\nHost: HOST\n\n",
	"bare LF ends the head":           "GET / HTTP/1.1\r\nHost: HOST\r\n\n",
	"CR CR LF":                        "GET / HTTP/1.1\r\nHost: HOST\r\nX: y\r\r\n\r\n",
	"NUL in a value":                  "GET / HTTP/1.1\r\nHost: HOST\r\nX: a\x00b\r\n\r\n",
	"obs-fold":                        "GET / HTTP/1.1\r\nHost: HOST\r\nX: y\r\n\tz\r\n\r\n",
	"fold behind the request line":    "GET / HTTP/1.1\r\n Host: evil.example.net\r\nHost: HOST\r\n\r\n",
	"name with a space":               "GET / HTTP/1.1\r\nHost: HOST\r\nX Y: z\r\n\r\n",
	"no name":                         "GET / HTTP/1.1\r\nHost: HOST\r\n: z\r\n\r\n",
	"no colon":                        "GET / HTTP/1.1\r\nHost: HOST\r\nX\r\n\r\n",
	"no Host":                         "GET / HTTP/1.1\r\nX: y\r\n\r\n",
	"two Hosts":                       "GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil.example.net\r\n\r\n",
	"two Hosts the same":              "GET / HTTP/1.1\r\nHost: HOST\r\nhost: HOST\r\n\r\n",
	"empty Host":                      "GET / HTTP/1.1\r\nHost:\r\n\r\n",
	"Host with a user":                "GET / HTTP/1.1\r\nHost: evil.example.net@HOST\r\n\r\n",
	"Host with a path":                "GET / HTTP/1.1\r\nHost: HOST/x\r\n\r\n",
	"Host as a list":                  "GET / HTTP/1.1\r\nHost: HOST, evil.example.net\r\n\r\n",
	"Host with a percent sign":        "GET / HTTP/1.1\r\nHost: HOST%2f.evil.example.net\r\n\r\n",
	"two spaces":                      "GET  / HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"a tab in the request line":       "GET\t/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"a space behind the version":      "GET / HTTP/1.1 \r\nHost: HOST\r\n\r\n",
	"two versions":                    "GET / HTTP/1.1 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"an empty line before":            "\r\nGET / HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"version in small letters":        "GET / http/1.1\r\nHost: HOST\r\n\r\n",
	"version with two digits":         "GET / HTTP/1.10\r\nHost: HOST\r\n\r\n",
	"version 1.2":                     "GET / HTTP/1.2\r\nHost: HOST\r\n\r\n",
	"version 2.0":                     "GET / HTTP/2.0\r\nHost: HOST\r\n\r\n",
	"HTTP/0.9":                        "GET /\r\n\r\n",
	"method with a colon":             "GE:T / HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"target with a fragment":          "GET /#x HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"target with a control byte":      "GET /\x01 HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"target with a bad escape":        "GET /%zz HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"target without a slash":          "GET evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"star without OPTIONS":            "GET * HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute with another authority": "GET http://evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute, TLS, another one":      "GET https://evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute with a user":            "GET http://HOST@evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute with a backslash":       "GET http://HOST\\@evil.example.net/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute with another port":      "GET http://HOST:8443/ HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute of another scheme":      "GET file:///etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"absolute without a host":         "GET http:///x HTTP/1.1\r\nHost: HOST\r\n\r\n",
	"an expectation unknown":          "POST / HTTP/1.1\r\nHost: HOST\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\nx",
	"a head of 70 KB":                 "GET / HTTP/1.1\r\nHost: HOST\r\nX: " + strings.Repeat("a", 70<<10) + "\r\n\r\n",
	"200 fields":                      "GET / HTTP/1.1\r\nHost: HOST\r\n" + strings.Repeat("X: a\r\n", 200) + "\r\n",
	"Upgrade twice":                   "GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n",
	"a trailer of framing announced":  "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 44\r\n\r\n",
}

// malformedBodies have the fault in the chunked body, when the head may already have been forwarded.
var malformedBodies = map[string]string{
	"chunk extension":              "1;x=y\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk extension with LF":      "1;\nxx\r\n4c\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size 0x1":               "0x1\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size with a sign":       "+1\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size with a space":      "1 \r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size with a space left": " 1\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size with underscores":  "1_0\r\naaaaaaaaaaaaaaaa\r\n0\r\n\r\n" + smuggled,
	"chunk size of 17 digits":      "10000000000000001\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size empty":             "\r\na\r\n0\r\n\r\n" + smuggled,
	"chunk size and bare LF":       "1\na\r\n0\r\n\r\n" + smuggled,
	"chunk size and bare CR":       "1\ra\r\n0\r\n\r\n" + smuggled,
	"chunk without its CR LF":      "1\r\naX\r\n0\r\n\r\n" + smuggled,
	"chunk ended by bare LF":       "1\r\na\n0\r\n\r\n" + smuggled,
	"trailer with bare LF":         "0\r\nX: y\n\r\n" + smuggled,
	"trailer without a colon":      "0\r\nX\r\n\r\n" + smuggled,
	"trailer with a space":         "0\r\nX : y\r\n\r\n" + smuggled,
	"trailer folded":               "0\r\nX: y\r\n z\r\n\r\n" + smuggled,
	"trailers of 20 KB":            "0\r\nX: " + strings.Repeat("y", 20<<10) + "\r\n\r\n" + smuggled,
}

const chunkedHead = "POST /chunked HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"

// bothWays calls f with an intercepted connection and with a plain one.
func bothWays(in *harness.Intruder, f func(c net.Conn, way string)) {
	in.T.Helper()
	address := in.Resolve(harness.OriginName, "ip4")
	f(in.TLS(in.Dial(netip.AddrPortFrom(address, 443)), harness.OriginName), "TLS")
	f(in.Dial(netip.AddrPortFrom(address, 80)), "plain HTTP")
}

func TestAttackSmuggling(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	requests := maps.Clone(malformed)
	for name, body := range malformedBodies {
		if len(body) < 4<<10 { // a longer one is forwarded in pieces
			requests["body: "+name] = chunkedHead + body
		}
	}
	began := time.Now()
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			in := in.On(t)
			bothWays(in, func(c net.Conn, way string) {
				r := bufio.NewReader(c)
				harness.Exchange(t, c, r, "GET /first HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n\r\n")
				if got := origin.Received(); strings.Count(got, "HTTP/1.1") != 1 {
					t.Fatalf("the good request arrived as %q", got)
				}
				res, body := harness.Exchange(t, c, r, strings.ReplaceAll(request, "HOST", harness.OriginName))
				if res.StatusCode/100 != 4 && res.StatusCode != 505 || !res.Close || strings.Contains(body, harness.Canary) {
					t.Errorf("%s: answer %d %s", way, res.StatusCode, body)
				}
				if _, err := r.ReadByte(); err == nil {
					t.Errorf("%s: the connection goes on", way)
				}
				if got := origin.Received(); got != "" {
					t.Errorf("%s: the origin received %q", way, got)
				}
			})
		})
	}
	in.Until("every refusal is counted", func() bool {
		refused := 0 // repeated refusals share an event
		for _, e := range in.Events(in.Box) {
			if !e.Time.Before(began) && e.Stage == policy.StageHTTP && e.Verdict == policy.Deny && e.Reason == name.ReasonBadRequest {
				refused += int(max(e.Count, 1))
			}
		}
		return refused == 2*len(requests)
	})
	in.NothingReached("evil.example.net")
}

// TestAttackSmugglingInALateBody sends the fault when the head was already forwarded. The request is aborted, so that
// the origin does not consider it complete, and the bytes after it are not read as another request.
func TestAttackSmugglingInALateBody(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	for name, body := range malformedBodies {
		t.Run(name, func(t *testing.T) {
			in := in.On(t)
			bothWays(in, func(c net.Conn, way string) {
				since := time.Now()
				head := strings.ReplaceAll(chunkedHead, "HOST", harness.OriginName) + "3\r\nabc\r\n"
				if _, err := io.WriteString(c, head); err != nil {
					t.Fatal(err)
				}
				got := ""
				for limit := time.Now().Add(harness.Patience); !strings.Contains(got, "abc") && time.Now().Before(limit); {
					got += origin.Received()
				}
				answer, _ := harness.SendAndReadAll(c, body)
				got += origin.Received()
				if strings.Contains(got, "smuggled") || strings.Contains(got, "\r\n0\r\n") || strings.Count(got, "HTTP/1.1") != 1 {
					t.Errorf("%s: the origin received %q", way, got)
				}
				if strings.Count(answer, "HTTP/1.1 ") > 1 || strings.Contains(answer, "stays open") {
					t.Errorf("%s: answers %q", way, answer)
				}
				in.Event(in.Box, func(e audit.Event) bool {
					return !e.Time.Before(since) && e.Path == "/chunked" && e.Error+string(e.Reason) != ""
				})
			})
		})
	}
}

// TestAttackTrailersRepeatAnInjectedHeader sends the injected header in the trailers, in every spelling.
func TestAttackTrailersRepeatAnInjectedHeader(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	c := in.TLS(in.DialHost(harness.OriginName, 443), harness.OriginName)
	r := bufio.NewReader(c)
	for _, announced := range []string{"Authorization", "X-Kept, authorization", "AUTHORIZATION,X-Kept", "X-Kept"} {
		harness.Exchange(t, c, r, fmt.Sprintf("POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\nTrailer: %s\r\n\r\n1\r\na\r\n0\r\n"+
			"Authorization: mine\r\nauthorization: mine\r\nAUTHORIZATION: mine\r\nX-Kept: yes\r\n\r\n", harness.OriginName, announced))
		got := ""
		for limit := time.Now().Add(harness.Patience); !strings.Contains(got, "X-Kept: yes\r\n\r\n") && time.Now().Before(limit); {
			got += origin.Received()
		}
		head, trailers, _ := strings.Cut(got, "\r\n\r\n")
		if !strings.Contains(head, "\r\nAuthorization: "+harness.Canary) || strings.Count(strings.ToLower(got), "authorization") != 1 {
			t.Errorf("the origin received %q", got)
		}
		if !strings.Contains(trailers, "0\r\nX-Kept: yes\r\n\r\n") {
			t.Errorf("an honest trailer was lost: %q", got)
		}
	}
}
