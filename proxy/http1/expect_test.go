package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"boxgate/proxy/proxytest"
)

// TestExpectIsAnswered: a client that waits for a 100 gets one, and the server the whole request at once.
func TestExpectIsAnswered(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPSServer(false, up.Serve)
	l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, `, "scrub": false, `+proxytest.Everywhere))
	c := l.DialPair(proxytest.API, port, true)
	r := bufio.NewReader(c)
	body := `["` + proxytest.TokenFor("KEY") + `"]`
	_, _ = fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", proxytest.HostPort(port), len(body))
	if line, err := r.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	_, _ = r.ReadString('\n')
	_, _ = io.WriteString(c, body+"GET /next HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\n\r\n")
	for range 2 {
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	got, bodies := up.All()
	if len(got) != 2 || bodies[0] != `["pa\"ss\\w&o=r d+%41/"]` || got[0].Header.Get("Expect") != "" || got[1].RequestURI != "/next" {
		t.Errorf("%d requests, %q", len(got), bodies)
	}
}
