package export

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// line is an event as it is logged.
func line(e audit.Event) []byte {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return append(b, '\n')
}

// values are attributes by their keys.
func valuesOf(t *testing.T, list []*common.KeyValue) map[string]any {
	t.Helper()
	out := map[string]any{}
	for _, kv := range list {
		if _, twice := out[kv.Key]; twice {
			t.Errorf("%s is there twice", kv.Key)
		}
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.Key] = int(v.IntValue)
		case *common.AnyValue_BoolValue:
			out[kv.Key] = v.BoolValue
		case *common.AnyValue_ArrayValue:
			var all []string
			for _, e := range v.ArrayValue.Values {
				all = append(all, e.GetStringValue())
			}
			out[kv.Key] = strings.Join(all, ",")
		}
	}
	return out
}

// TestOTLP checks that OpenTelemetry's own message types parse a request without unknown fields, and that it has the
// decision's content.
func TestOTLP(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	w := newWorld(t, c, Options{Kind: OTLP, URL: c.URL + "/v1/logs", Headers: map[string]string{"authorization": "token"}}, quick)
	at := time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)
	w.log.Record(audit.Event{
		Time: at, Box: "box-1", Stage: policy.StageHTTP, Protocol: policy.TCP, Name: "api.example.com", Addr: netip.MustParseAddr("192.0.2.1"), Claimed: netip.MustParseAddr("192.0.2.2"),
		Port: 8443, Method: "GET", Path: "/a", Messages: "tools/list", Verdict: policy.Allow, Action: audit.ActionIntercept, Reason: name.ReasonAllowedDomain, Rule: "api.example.com", Version: 1 << 40,
		Headers: []string{"Authorization", "X-Key"}, BytesIn: 1 << 41, BytesOut: 5, Duration: 1500, Status: 201,
	})
	w.log.Record(audit.Event{Time: at, Box: "box-1", Stage: policy.StageDNS, Protocol: policy.UDP, Name: "denied.example.com", Method: "AAAA", Reason: name.ReasonNotAllowed, Action: audit.ActionSink})
	w.log.Record(audit.Event{Time: at, Box: "box-2", Stage: policy.StageKernel, Protocol: policy.ICMP, Addr: netip.MustParseAddr("2001:db8::1"), Reason: name.ReasonDeniedCIDR, Action: audit.ActionKernel})
	w.log.Record(audit.Event{
		Time: at, Box: "box-2", Stage: policy.StageURL, Protocol: policy.TCP, Name: "b-80.preview.example.com", Peer: netip.MustParseAddr("198.51.100.1"), Method: "BREW", Path: "/\x1b[1m",
		Verdict: policy.Allow, Reason: name.ReasonAllowAll, Action: audit.ActionForward, Status: 200, Credential: audit.CredentialBearer,
	})
	w.close()
	var got []*logs.LogRecord
	for _, r := range c.received() {
		var data logs.LogsData // like ExportLogsServiceRequest, whose package needs gRPC
		if err := (protojson.UnmarshalOptions{}).Unmarshal(r.body, &data); err != nil {
			t.Fatalf("%v: %s", err, r.body)
		}
		if r.path != "/v1/logs" || r.header.Get("Authorization") != "Bearer of-the-collector" || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s with %v", r.path, r.header)
		}
		if bytes.Contains(r.body, []byte(`"intValue":5`)) {
			t.Error("64-bit integers are numbers")
		}
		from := valuesOf(t, data.ResourceLogs[0].Resource.Attributes)
		want := map[string]any{"service.name": "boxgate", "service.version": "1.2.3", "service.instance.id": "abc123", "host.name": "host-1", "boxgate.run": "run-1"}
		if diff := cmp.Diff(want, from); diff != "" {
			t.Error(diff)
		}
		got = append(got, data.ResourceLogs[0].ScopeLogs[0].LogRecords...)
	}
	want := []map[string]any{
		{
			"server.address": "api.example.com", "server.port": 8443, "network.transport": "tcp", "network.peer.address": "192.0.2.1", "http.request.method": "GET",
			"url.path": "/a", "boxgate.messages": "tools/list", "http.response.status_code": 201, "boxgate.seq": 1, "boxgate.box": "box-1", "boxgate.stage": "http", "boxgate.claimed_addr": "192.0.2.2",
			"boxgate.verdict": "allow", "boxgate.action": "intercept", "boxgate.reason": string(name.ReasonAllowedDomain), "boxgate.rule": "api.example.com",
			"boxgate.policy_version": 1 << 40, "boxgate.headers": "Authorization,X-Key", "boxgate.bytes_in": 1 << 41, "boxgate.bytes_out": 5, "boxgate.duration_ns": 1500,
		},
		{
			"dns.question.name": "denied.example.com", "boxgate.method": "AAAA", "network.transport": "udp", "boxgate.seq": 2, "boxgate.box": "box-1", "boxgate.stage": "dns",
			"boxgate.verdict": "deny", "boxgate.action": "sink", "boxgate.reason": "not_allowed",
		},
		{
			"server.address": "2001:db8::1", "network.peer.address": "2001:db8::1", "boxgate.protocol": "icmp", "boxgate.seq": 3, "boxgate.box": "box-2", "boxgate.stage": "kernel",
			"boxgate.verdict": "deny", "boxgate.action": "kernel", "boxgate.reason": string(name.ReasonDeniedCIDR),
		},
		{
			"server.address": "b-80.preview.example.com", "network.transport": "tcp", "client.address": "198.51.100.1", "http.request.method": "_OTHER", "http.request.method_original": "BREW",
			"url.path": `/\x1b[1m`, "http.response.status_code": 200, "boxgate.seq": 4, "boxgate.box": "box-2", "boxgate.stage": "url", "boxgate.verdict": "allow",
			"boxgate.action": "forward", "boxgate.reason": string(name.ReasonAllowAll), "boxgate.credential": "bearer",
		},
	}
	if len(got) != len(want) {
		t.Fatalf("%d records: %s", len(got), w.texts())
	}
	for i, r := range got {
		if diff := cmp.Diff(want[i], valuesOf(t, r.Attributes)); diff != "" {
			t.Errorf("record %d: %s", i, diff)
		}
		severity := logs.SeverityNumber_SEVERITY_NUMBER_INFO
		if want[i]["boxgate.verdict"] == "deny" {
			severity = logs.SeverityNumber_SEVERITY_NUMBER_WARN
		}
		if r.TimeUnixNano != uint64(at.UnixNano()) || r.ObservedTimeUnixNano == 0 || r.SeverityNumber != severity || r.EventName != "boxgate.decision" {
			t.Errorf("record %d: %v", i, r)
		}
	}
	if text := got[0].Body.GetStringValue(); text != "allow http GET api.example.com:8443/a: "+string(name.ReasonAllowedDomain) {
		t.Errorf("the body is %q", text)
	}
}
