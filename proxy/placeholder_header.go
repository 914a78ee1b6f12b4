package proxy

import "strings"

// holdsNoKey reports whether a header is one that no server takes a key from and that many send back: in a header of the
// answer, such as the origin of a cross-origin request or the ID of a request, or on the page of an error, such as the
// media type that is not served. A value put there would be told to whoever asks.
func holdsNoKey(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	if printedHeaders[name] {
		return true
	}
	for _, prefix := range printedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

var printedPrefixes = []string{
	"accept-", "access-control-", "content-", "grpc-", "if-", "sec-ch-", "sec-fetch-", "x-b3-", "x-envoy-", "x-forwarded-",
}

var printedHeaders = map[string]bool{
	"accept": true, "origin": true, "referer": true, "user-agent": true, "from": true, "via": true, "forwarded": true, "date": true,
	"range": true, "cache-control": true, "pragma": true, "prefer": true, "priority": true, "max-forwards": true,
	"upgrade-insecure-requests": true, "dnt": true, "link": true, "warning": true,
	"sec-websocket-key": true, "sec-websocket-version": true, "sec-websocket-extensions": true,
	"request-id": true, "x-request-id": true, "correlation-id": true, "x-correlation-id": true, "x-trace-id": true,
	"idempotency-key": true, "x-idempotency-key": true, "x-client-request-id": true, "x-ms-client-request-id": true,
	"traceparent": true, "tracestate": true, "baggage": true, "b3": true, "x-amzn-trace-id": true, "x-cloud-trace-context": true,
	"x-http-method-override": true, "x-http-method": true, "x-method-override": true, "x-original-url": true, "x-rewrite-url": true,
	"x-original-host": true, "x-real-ip": true, "x-client-ip": true, "true-client-ip": true, "x-requested-with": true,
}
