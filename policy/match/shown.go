package match

import (
	"slices"
	"strings"
)

// ShownHeader reports whether a request header is unsuitable for a key, since many servers show its value: in a response header,
// such as the origin of a cross-origin request, the ID of a request or the subprotocol of a WebSocket; on an error
// page, such as the unsupported media type; or to all readers of a stored object, such as its metadata.
func ShownHeader(name string) bool {
	name = FoldHeader(name)
	has := func(test func(string, string) bool) func(string) bool {
		return func(part string) bool { return test(name, part) }
	}
	return shownHeaders[name] ||
		slices.ContainsFunc(shownParts, has(strings.Contains)) ||
		slices.ContainsFunc(shownPrefixes, has(strings.HasPrefix)) ||
		slices.ContainsFunc(shownSuffixes, has(strings.HasSuffix)) ||
		slices.ContainsFunc(storePrefixes, has(strings.HasPrefix)) && !slices.ContainsFunc(keyWords, has(strings.Contains))
}

// shownParts: x-amz-meta-*, x-goog-meta-*, x-ms-meta-*, x-object-meta-*, x-container-meta-*, x-oss-meta-* and the like.
var shownParts = []string{"-meta-"}

var shownPrefixes = []string{
	"accept-", "access-control-", "content-", "grpc-", "if-", "sec-ch-", "sec-fetch-", "x-forwarded-", "x-original-",
	"upload-", "x-upload-", "x-archive-meta", "x-stainless-", "x-goog-custom-audit-",
	"x-emc-meta", "x-emc-listable-meta", "helicone-property-", "helicone-session-", "helicone-user-",
	"x-b3-", "x-envoy-", "x-datadog-", "x-newrelic-", "uberctx-", "ot-tracer-", "ot-baggage-",
}

var shownSuffixes = []string{
	"-request-id", "-correlation-id", "-trace-id", "-idempotency-key", "-api-client", "-version", "-beta", "-key-id", "-key-name", "-key-enabled", "-key-md5", "-key-sha256",
}

// storePrefixes are prefixes of the headers of object stores and their clouds. Stores print, return or keep nearly all of
// them: tags, redirects, copy sources, content types. Headers for keys have one of keyWords in their name.
var (
	storePrefixes = []string{"x-amz-", "x-goog-", "x-ms-", "x-oss-", "x-cos-", "x-obs-", "x-tos-", "x-bce-", "x-bz-"}
	keyWords      = []string{"key", "token", "auth", "secret", "credential", "mfa"}
)

var shownHeaders = map[string]bool{
	"accept": true, "origin": true, "referer": true, "user-agent": true, "from": true, "via": true, "forwarded": true, "date": true,
	"range": true, "cache-control": true, "pragma": true, "prefer": true, "priority": true, "max-forwards": true,
	"upgrade-insecure-requests": true, "dnt": true, "link": true, "warning": true, "last-event-id": true, "soapaction": true,
	"destination": true, "depth": true, "overwrite": true, "slug": true, "if": true, "timeout": true, "a-im": true,
	"sec-websocket-key": true, "sec-websocket-version": true, "sec-websocket-extensions": true, "sec-websocket-protocol": true,
	"request-id": true, "correlation-id": true, "trace-id": true, "idempotency-key": true,
	"traceparent": true, "tracestate": true, "baggage": true, "b3": true, "x-cloud-trace-context": true, "uber-trace-id": true,
	"sentry-trace": true, "newrelic": true, "x-ot-span-context": true, "elastic-apm-traceparent": true, "jaeger-debug-id": true, "jaeger-baggage": true,
	"x-http-method-override": true, "x-http-method": true, "x-method-override": true, "x-rewrite-url": true,
	"x-host": true, "x-real-ip": true, "x-client-ip": true, "true-client-ip": true, "x-remote-ip": true, "x-remote-addr": true,
	"x-cluster-client-ip": true, "cf-connecting-ip": true, "fastly-client-ip": true, "cdn-loop": true,
	"x-requested-with": true, "x-object-manifest": true, "x-copy-from": true, "x-delete-at": true,
	"x-symlink-target": true, "x-versions-location": true, "x-history-location": true, "x-container-read": true, "x-container-write": true,
	"openai-organization": true, "openai-project": true, "http-referer": true, "x-title": true, "cf-aig-metadata": true, "x-portkey-metadata": true,
}
