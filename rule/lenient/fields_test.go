package lenient_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"boxgate/proxy/proxytest"
)

// repaired are responses that send a secret, fields that a rule removes and fields of the connection, under names and values to repair.
var repaired = map[string]struct {
	method, response string
	status           int
	body             string
}{
	"head":    {"GET", "HTTP/1.1 200 OK\r\n" + hidden + "X-Hop\t: gone\r\nConnection : X-Hop\r\nContent-Length : 4\r\n\r\nbody", 200, "body"},
	"trailer": {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n" + hidden + "Transfer-Encoding : chunked\r\nContent-Length : 9\r\nKeep-Alive : gone\r\n\r\n", 200, "body"},
	"interim": {"GET", "HTTP/1.1 103 Early Hints\n" + hidden + "Content-Length : 9\n\nHTTP/1.1 200 OK\r\n" + hidden + "Content-Length: 4\r\n\r\nbody", 200, "body"},
	"204":     {"GET", "HTTP/1.1 204 No Content\n" + hidden + "Transfer-Encoding: chunked\nContent-Length: 4\n\n4\r\nbody\r\n0\r\n\r\n", 204, ""},
	"304":     {"GET", "HTTP/1.1 304 Not Modified\n" + hidden + "Transfer-Encoding: chunked\nContent-Length: 4\n\n4\r\nbody\r\n0\r\n\r\n", 304, ""},
	"HEAD":    {"HEAD", "HTTP/1.1 200 OK\n" + hidden + "Transfer-Encoding: chunked\nContent-Length: 4\n\n4\r\nbody\r\n0\r\n\r\n", 200, ""},
}

const hidden = "X-Internal : gone\r\nX-Internal\r\n : gone\r\nX-Folded:\r\n canary-1\r\nX-In(: canary-1\r\nX-Long\r\n : canary-1\r\n"

// TestAttackRepairedFields: a field is judged by its repaired name and value: rules remove it, scrub masks it, and it frames nothing where it
// must not. Content of a response that has none is not taken for the next response.
func TestAttackRepairedFields(t *testing.T) {
	t.Parallel()
	for what, try := range repaired {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", HTTP/2 ", h2), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				port := l.RawServer(true, func(c net.Conn, in *bufio.Reader) {
					if r, err := http.ReadRequest(in); err == nil {
						text := map[string]string{"/first": try.response, "/second": "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext"}[r.URL.Path]
						_, _ = io.WriteString(c, text+"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
						_, _ = io.Copy(io.Discard, in)
					}
				})
				url := "https://" + proxytest.HostPort(port)
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {
					"headers": {"X-Key": "canary-1"}, "scrub": true, "lenient": true, "response_headers": {"remove": ["X-Internal"]}}}`)
				client := l.HTTPClientLater(port, h2)
				var interim []string
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					interim = append(interim, fmt.Sprint(h))
					return nil
				}})
				r, err := http.NewRequestWithContext(ctx, try.method, url+"/first", nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != try.status || string(body) != try.body {
					t.Errorf("%d %q, %v", res.StatusCode, body, err)
				}
				fields := fmt.Sprint(res.Header, res.Trailer, interim)
				if strings.Contains(fields, "canary") || strings.Contains(fields, "gone") || !strings.Contains(fields, "X-Folded:[********]") || !strings.Contains(fields, "X-Long:[********]") {
					t.Errorf("the fields are %s", fields)
				}
				if (what == "interim") != (len(interim) == 1) {
					t.Errorf("interim responses: %q", interim)
				}
				if res, text := proxytest.Get(t, client, url+"/second", nil); res.StatusCode != 200 || text != "next" {
					t.Errorf("the second response: %d %q", res.StatusCode, text)
				}
			})
		}
	}
}
