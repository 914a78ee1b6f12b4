package config

import "testing"

// TestExport checks the required settings, and the URL for logs.
func TestExport(t *testing.T) {
	t.Parallel()
	cfg, err := Parse("boxgate.yaml", []byte(`
secrets: {collector: {file: /etc/collector}, webhook: {file: /etc/webhook}}
log: {export: {otlp: {endpoint: 'https://10.0.0.1:4318', headers: {authorization: collector}}, webhook: {url: 'http://localhost:8080/hook', secret: webhook}}}
`), []string{"BOXGATE_LOG_EXPORT_OTLP_EVENTS=denied"})
	if err != nil {
		t.Fatal(err)
	}
	if e := cfg.Log.Export; !e.Enabled() || !e.OTLP.Denied() || !e.Webhook.Denied() || e.OTLP.Headers["authorization"] != "collector" {
		t.Errorf("%+v", e)
	}
	if e := Default().Log.Export; e.Enabled() || e.OTLP.Denied() || !e.Webhook.Denied() {
		t.Errorf("by default: %+v", e)
	}
	for endpoint, want := range map[string]string{
		"https://c:4318": "https://c:4318/v1/logs", "https://c/": "https://c/v1/logs", "https://c/otlp": "https://c/otlp/v1/logs",
		"https://c/v1/logs": "https://c/v1/logs", "https://c/v1/logs/": "https://c/v1/logs",
	} {
		if got := (OTLP{Endpoint: endpoint}).LogsURL(); got != want {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}
