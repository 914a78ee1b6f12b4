package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"boxgate/policy/match"
)

// Export configures the operator's collectors, which receive decisions in addition to the log.
type Export struct {
	// CAFiles are roots trusted for collectors, in addition to the system's and those for upstreams.
	CAFiles []string `yaml:"ca_files"`
	OTLP    OTLP     `yaml:"otlp"`
	Webhook Webhook  `yaml:"webhook"`
}

// OTLP is a collector that accepts logs by OTLP over HTTP.
type OTLP struct {
	Endpoint string `yaml:"endpoint"` // empty: no OTLP
	// Headers maps the names of headers to the names of entries of the section secrets with their values.
	Headers map[string]string `yaml:"headers"`
	Events  string            `yaml:"events"`
}

// MetricsOTLP is a collector that accepts metrics by OTLP over HTTP.
type MetricsOTLP struct {
	Endpoint string            `yaml:"endpoint"` // empty: no OTLP
	Headers  map[string]string `yaml:"headers"`  // like the headers of OTLP
	Interval time.Duration     `yaml:"interval"`
	Protocol string            `yaml:"protocol"`
}

// protobufOverHTTP is the only protocol for metrics, by its name in OTEL_EXPORTER_OTLP_PROTOCOL.
const protobufOverHTTP = "http/protobuf"

func defaultMetricsOTLP() MetricsOTLP {
	return MetricsOTLP{Interval: time.Minute, Protocol: protobufOverHTTP}
}

// URL returns the URL for metrics: the endpoint with /v1/metrics.
func (o MetricsOTLP) URL() string {
	const path = "/v1/metrics"
	return strings.TrimSuffix(strings.TrimSuffix(o.Endpoint, "/"), path) + path
}

// check finds values that make exporting impossible.
func (o MetricsOTLP) check(fail func(key, format string, args ...any), secrets Secrets) {
	const key = "metrics.otlp"
	if o.Interval < time.Second || o.Interval > time.Hour {
		fail(key+".interval", "%v is out of range; use 1s to 1h", o.Interval)
	}
	if o.Protocol != protobufOverHTTP {
		fail(key+".protocol", "%q is not a valid value; use %s", o.Protocol, protobufOverHTTP)
	}
	if o.Endpoint != "" {
		checkCollector(fail, key+".endpoint", "metrics", o.Endpoint)
		checkSecretHeaders(fail, key+".headers", o.Headers, secrets)
	} else if len(o.Headers) > 0 {
		fail(key+".endpoint", "is not set; set it, or remove the rest of %s", key)
	}
}

// Webhook is a receiver of signed webhooks.
type Webhook struct {
	URL string `yaml:"url"` // empty: no webhook
	// Secret is the name of the entry of the section secrets with the signing key.
	Secret  string            `yaml:"secret"`
	Headers map[string]string `yaml:"headers"` // like the headers of OTLP
	Events  string            `yaml:"events"`
}

// Values of events.
const (
	eventsAll    = "all"
	eventsDenied = "denied"
)

func defaultExport() Export {
	return Export{OTLP: OTLP{Events: eventsAll}, Webhook: Webhook{Events: eventsDenied}}
}

// Enabled reports whether any export is configured.
func (e Export) Enabled() bool { return e.OTLP.Endpoint != "" || e.Webhook.URL != "" }

// Denied reports whether only denials are sent.
func (o OTLP) Denied() bool { return o.Events == eventsDenied }

// Denied reports whether only denials are sent.
func (w Webhook) Denied() bool { return w.Events == eventsDenied }

// LogsURL returns the URL for logs: the endpoint with /v1/logs.
func (o OTLP) LogsURL() string {
	const path = "/v1/logs"
	return strings.TrimSuffix(strings.TrimSuffix(o.Endpoint, "/"), path) + path
}

// check finds values that make exporting impossible.
func (e Export) check(fail func(key, format string, args ...any), secrets Secrets) {
	const otlp, webhook = "log.export.otlp", "log.export.webhook"
	checkEvents(fail, otlp, e.OTLP.Events)
	checkEvents(fail, webhook, e.Webhook.Events)
	if e.OTLP.Endpoint != "" {
		checkCollector(fail, otlp+".endpoint", "decisions", e.OTLP.Endpoint)
		checkSecretHeaders(fail, otlp+".headers", e.OTLP.Headers, secrets)
	} else if len(e.OTLP.Headers) > 0 {
		fail(otlp+".endpoint", "is not set; set it, or remove the rest of %s", otlp)
	}
	w := e.Webhook
	if w.URL == "" {
		if w.Secret != "" || len(w.Headers) > 0 {
			fail(webhook+".url", "is not set; set it, or remove the rest of %s", webhook)
		}
		return
	}
	checkCollector(fail, webhook+".url", "decisions", w.URL)
	checkSecretHeaders(fail, webhook+".headers", w.Headers, secrets)
	if _, known := secrets.Sources[w.Secret]; !known {
		fail(webhook+".secret", "is not the name of an entry of secrets; add one that signs, such as secrets: {webhook: {file: /etc/boxgate/webhook}}, and use its name")
	}
}

func checkEvents(fail func(key, format string, args ...any), key, value string) {
	if value != eventsAll && value != eventsDenied {
		fail(key+".events", "%q is not a valid value; use %s or %s", value, eventsAll, eventsDenied)
	}
}

// checkCollector requires a URL without secrets that does not send what is exported to another host unencrypted.
func checkCollector(fail func(key, format string, args ...any), key, what, text string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "" || u.Scheme != "https" && u.Scheme != "http": // not quoted: it may contain credentials
		fail(key, "is not a URL such as https://collector.example.org:4318")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		fail(key, "has a user, a query or a fragment, which logs would show; put what is secret into headers")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		fail(key, "sends %s unencrypted; use https, or http to a loopback address", what)
	}
}

// checkSecretHeaders requires headers that may be set, each with a configured secret.
func checkSecretHeaders(fail func(key, format string, args ...any), key string, headers map[string]string, secrets Secrets) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if err := match.CheckHeaderName(name); err != nil {
			fail(key, "%v", err)
			continue
		}
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "webhook-") || strings.HasPrefix(lower, "content-") {
			fail(key, "%q is set by the gateway", name)
		}
		if _, known := secrets.Sources[headers[name]]; !known {
			fail(fmt.Sprintf("%s.%s", key, name), "is not the name of an entry of secrets; add one, such as secrets: {collector: {file: /etc/boxgate/collector}}, and use its name")
		}
	}
}
