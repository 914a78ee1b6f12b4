package ingress

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"boxgate/audit"
)

// BenchmarkKeepAlive is a request with a bearer token and an answer of 1 KiB, on connections that are kept, over HTTP/1.1
// and HTTP/2. Client and application are in the same process and count as well.
func BenchmarkKeepAlive(b *testing.B) {
	for _, version := range []string{"http/1.1", "h2"} {
		b.Run(version, func(b *testing.B) { benchmarkKeepAlive(b, version) })
	}
}

func benchmarkKeepAlive(b *testing.B, version string) {
	f := start(b, func(c *Config) { c.Audit, c.RequestRate = audit.New(audit.Options{}), 1_000_000 })
	answer := []byte(strings.Repeat("x", 1024))
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	b.Cleanup(app.Close)
	token := BearerDigest("token")
	f.expose("box1-8080", app, Auth{Bearer: &token})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: f.roots, ServerName: "box1-8080" + domain, NextProtos: []string{version}},
			ForceAttemptHTTP2: version == "h2",
		}}
		defer client.CloseIdleConnections()
		for pb.Next() {
			r, err := http.NewRequest(http.MethodGet, "https://"+f.https+"/", nil)
			if err != nil {
				b.Error(err)
				return
			}
			r.Host = "box1-8080" + domain
			r.Header.Set("Authorization", "Bearer token")
			resp, err := client.Do(r)
			if err != nil {
				b.Error(err)
				return
			}
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err != nil || n != 1024 || resp.StatusCode != http.StatusOK {
				b.Errorf("%d, %d bytes, %v", resp.StatusCode, n, err)
				return
			}
		}
	})
}
