package export

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// otlp sends ExportLogsServiceRequests of OTLP/HTTP 1.x in JSON (https://opentelemetry.io/docs/specs/otlp/#otlphttp):
// keys in lowerCamelCase, 64-bit integers as strings, enums as numbers.
type otlp struct{}

// schema is the version of the semantic conventions that the attributes follow.
const schema = "https://opentelemetry.io/schemas/1.43.0"

type (
	logsRequest struct {
		ResourceLogs []resourceLogs `json:"resourceLogs"`
	}
	resourceLogs struct {
		Resource  resource    `json:"resource"`
		ScopeLogs []scopeLogs `json:"scopeLogs"`
		SchemaURL string      `json:"schemaUrl"`
	}
	resource struct {
		Attributes attributes `json:"attributes"`
	}
	scopeLogs struct {
		Scope      scope       `json:"scope"`
		LogRecords []logRecord `json:"logRecords"`
		SchemaURL  string      `json:"schemaUrl"`
	}
	scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	logRecord struct {
		Time       string     `json:"timeUnixNano"`
		Observed   string     `json:"observedTimeUnixNano"`
		Severity   int        `json:"severityNumber"`
		Level      string     `json:"severityText"`
		Body       text       `json:"body"`
		Attributes attributes `json:"attributes"`
		Name       string     `json:"eventName"`
	}
	attribute struct {
		Key   string `json:"key"`
		Value any    `json:"value"` // text, integer, flag or list
	}
	text struct {
		Value string `json:"stringValue"`
	}
	integer struct {
		Value string `json:"intValue"`
	}
	flag struct {
		Value bool `json:"boolValue"`
	}
	list struct {
		Value values `json:"arrayValue"`
	}
	values struct {
		Values []text `json:"values"`
	}
)

// The OTLP severities of decisions.
const (
	severityInfo = 9
	severityWarn = 13
)

func (otlp) body(from Origin, events []audit.Event) ([]byte, error) {
	var of attributes
	of.text("service.name", "boxgate")
	of.text("service.version", from.Version)
	of.text("service.instance.id", from.Host)
	of.text("host.name", from.Name)
	of.text("boxgate.run", from.Run)
	records := make([]logRecord, 0, len(events))
	now := nanos(time.Now())
	for i := range events {
		records = append(records, record(&events[i], now))
	}
	return json.Marshal(logsRequest{[]resourceLogs{{
		Resource:  resource{of},
		ScopeLogs: []scopeLogs{{scope{"boxgate", from.Version}, records, schema}},
		SchemaURL: schema,
	}}})
}

func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

// record encodes one decision.
func record(e *audit.Event, now string) logRecord {
	r := logRecord{
		Time: nanos(e.Time), Observed: now, Severity: severityInfo, Level: "INFO", Body: text{audit.Summary(*e)}, Name: "boxgate.decision",
	}
	if e.Verdict != policy.Allow {
		r.Severity, r.Level = severityWarn, "WARN"
	}
	r.Attributes.addConventions(e)
	r.Attributes.addOwn(e)
	return r
}

// attributes are a list of keys and values. Empty values are omitted.
type attributes []attribute

func (a *attributes) text(key, value string) {
	if value != "" {
		*a = append(*a, attribute{key, text{value}})
	}
}

func (a *attributes) texts(key string, values []string) {
	if len(values) == 0 {
		return
	}
	all := list{}
	for _, value := range values {
		all.Value.Values = append(all.Value.Values, text{value})
	}
	*a = append(*a, attribute{key, all})
}

func (a *attributes) number(key string, value int64) {
	if value != 0 {
		*a = append(*a, attribute{key, integer{strconv.FormatInt(value, 10)}})
	}
}

// addConventions adds the attributes that OpenTelemetry's semantic conventions define.
func (a *attributes) addConventions(e *audit.Event) {
	address := ""
	if e.Addr.IsValid() {
		address = e.Addr.String()
	}
	switch {
	case e.Stage == policy.StageDNS:
		a.text("dns.question.name", e.Name)
	case e.Name != "":
		a.text("server.address", e.Name)
	default:
		a.text("server.address", address)
	}
	a.number("server.port", int64(e.Port))
	switch e.Protocol {
	case policy.TCP, policy.UDP:
		a.text("network.transport", string(e.Protocol))
	default:
		a.text("boxgate.protocol", string(e.Protocol))
	}
	a.text("network.peer.address", address)
	if e.Peer.IsValid() {
		a.text("client.address", e.Peer.String())
	}
	switch {
	case e.Stage == policy.StageDNS:
		a.text("boxgate.method", e.Method) // the type of the query
	case e.Method == "" || knownMethod(e.Method):
		a.text("http.request.method", e.Method)
	default:
		a.text("http.request.method", "_OTHER")
		a.text("http.request.method_original", e.Method)
	}
	a.text("url.path", e.Path)
	a.number("http.response.status_code", int64(e.Status))
}

// knownMethod reports whether a method is an allowed value of http.request.method.
func knownMethod(m string) bool {
	switch m {
	case "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE":
		return true
	}
	return false
}

// addOwn adds the other attributes, named like the event's fields in JSON.
func (a *attributes) addOwn(e *audit.Event) {
	a.number("boxgate.seq", int64(e.Seq))
	a.text("boxgate.box", string(e.Box))
	a.text("boxgate.box_name", e.BoxName)
	a.text("boxgate.stage", string(e.Stage))
	if e.Claimed.IsValid() {
		a.text("boxgate.claimed_addr", e.Claimed.String())
	}
	a.text("boxgate.messages", e.Messages)
	a.text("boxgate.credential", string(e.Credential))
	a.text("boxgate.verdict", e.Verdict.String())
	a.text("boxgate.action", string(e.Action))
	a.text("boxgate.rcode", e.RCode)
	a.text("boxgate.reason", string(e.Reason))
	a.text("boxgate.rule", e.Rule)
	a.number("boxgate.policy_version", int64(e.Version))
	a.texts("boxgate.headers", e.Headers)
	a.text("boxgate.login", e.Login)
	a.text("boxgate.via", e.Via)
	a.text("boxgate.secret", e.Secret)
	a.texts("boxgate.secrets", e.Secrets)
	a.number("boxgate.bytes_in", e.BytesIn)
	a.number("boxgate.bytes_out", e.BytesOut)
	a.number("boxgate.duration_ns", int64(e.Duration))
	a.number("boxgate.count", int64(e.Count))
	a.number("boxgate.destinations", int64(e.Destinations))
	a.text("boxgate.phase", string(e.Phase))
	a.text("boxgate.conn", e.Conn)
	a.text("boxgate.error", e.Error)
	if e.SelfTest {
		*a = append(*a, attribute{"boxgate.selftest", flag{true}})
	}
}

// sign is a no-op: the configured headers authenticate the sender.
func (otlp) sign(context.Context, http.Header, string, []byte) error { return nil }

// interpret implements OTLP's table of retryable status codes: no other status is retried, nor is a partial success.
func (otlp) interpret(res *http.Response, reply []byte) answer {
	switch status := res.StatusCode; {
	case status >= 200 && status < 300:
		return answer{rejected: rejected(res, reply)}
	case isRetryable(status):
		return answer{err: statusError(res), retryAfter: retryAfter(res.Header)}
	default:
		return answer{err: statusError(res), noRetry: true}
	}
}

// rejected returns the number of records that the collector reports as rejected.
func rejected(res *http.Response, reply []byte) uint64 {
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return 0
	}
	var response struct {
		PartialSuccess struct {
			Rejected json.RawMessage `json:"rejectedLogRecords"` // a text or a number
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(reply, &response) != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.Trim(string(response.PartialSuccess.Rejected), `"`), 10, 63)
	if err != nil {
		return 0
	}
	return n
}
