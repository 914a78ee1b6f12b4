package exchange_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestAttackPlaceholderWhereServersAnswer: a box puts a token where ordinary servers send back what they got: into the
// origin of a cross-origin request, the ID of the request, the media type that an error page names. Nothing is forwarded.
func TestAttackPlaceholderWhereServersAnswer(t *testing.T) {
	t.Parallel()
	key := proxytest.TokenFor("KEY")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
		for i, label := range []string{
			"Origin", "Referer", "User-Agent", "Content-Type", "Content-Language", "Accept", "Accept-Language", "If-None-Match", "If-Match",
			"Access-Control-Request-Headers", "X-Request-Id", "X_Request_ID", "x-correlation-id", "Idempotency-Key", "Traceparent", "X-B3-TraceId",
			"X-Forwarded-For", "Forwarded", "X-Http-Method-Override", "Range", "From", "Grpc-Timeout", "Sec-Fetch-Site",
			"Sec-WebSocket-Protocol", "X-Goog-Meta-Owner", "X-Amz-Meta-Owner", "X_Amz_Meta_Owner", "X-Ms-Meta-Token", "X-Object-Meta-A", "X-Container-Meta-Temp-Url-Key",
			"X-Account-Meta-A", "X-Oss-Meta-A", "X-Amz-Tagging", "X-Amz-Website-Redirect-Location", "X-Ms-Blob-Content-Disposition", "X-Goog-User-Project",
			"Upload-Metadata", "X-Bz-Info-A", "Anthropic-Version", "Openai-Organization", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "Last-Event-Id",
			"X-Oss-Tagging", "X-Cos-Storage-Class", "X-Obs-Acl", "X-Tos-Tagging", "X-Bce-Storage-Class", "X-Bz-File-Name", "X-Emc-Meta", "X-Emc-Listable-Meta",
			"X-Goog-Custom-Audit-Api-Key", "X-Goog-Encryption-Kms-Key-Name", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled", "X-Symlink-Target",
			"HTTP-Referer", "X-Title", "Helicone-Property-Token", "Cf-Aig-Metadata", "X-Portkey-Metadata",
		} {
			req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", strings.NewReader("x"))
			req.Header[label] = []string{"https://" + key}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if got, _ := up.Take(); got != nil || res.StatusCode != 403 || !strings.Contains(string(text), "placeholder_leak") {
				t.Errorf("%s: %d %s", label, res.StatusCode, text)
			}
			e := l.Events.Wait(t, i+1)[i]
			if e.Reason != name.ReasonPlaceholderLeak || !strings.Contains(strings.ToLower(e.Error), "the placeholder key in a header that holds no key ("+strings.ToLower(label)) {
				t.Errorf("%s: event %+v", label, e)
			}
		}
		for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "Private-Token", "X-Amz-Security-Token", "X-Auth-Key", "X-Goog-Api-Key",
			"X-Ms-Encryption-Key", "X-Ms-Copy-Source-Authorization", "X-Oss-Security-Token", "X-Cos-Security-Token", "Helicone-Auth", "Cf-Aig-Authorization", "X-Portkey-Api-Key", "X-Custom", "Mcp-Session-Id"} {
			if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{name: {key}}); res.StatusCode != 200 {
				t.Errorf("%s: %d %s", name, res.StatusCode, text)
			}
		}
	})
}
