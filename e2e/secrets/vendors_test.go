package secrets

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet/models"
)

// TestMeteredServices asks the services of docs/metering.md with rules as the page has them: OpenRouter's two APIs under one key, Azure with
// its deployment in the path, and Bedrock's Chat Completions. Streams and whole answers count as the service reports them, whatever else it
// sends, and calls without such a report are refused.
func TestMeteredServices(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, nil)
	const (
		chat    = `{MODEL"messages":[{"role":"user","content":"model: say hello"}],"stream":STREAM,"stream_options":{"include_usage":true},"max_tokens":50}`
		message = `{MODEL"messages":[{"role":"user","content":"model: say hello"}],"stream":STREAM,"max_tokens":50}`
	)
	for i, s := range []struct {
		host, rule string
		calls      map[string]string // path → body
		model      string            // of the body
		counted    string
		refused    string // path
		marks      []string
	}{
		{
			"openrouter.ai", `[{"match": {"path": {"prefix": "/api/v1/messages"}}, "headers": {"Authorization": "Bearer KEY"}, "meter": "anthropic"}, {"headers": {"Authorization": "Bearer KEY"}, "meter": "openai"}]`,
			map[string]string{"/api/v1/chat/completions": chat, "/api/v1/messages": message}, "vendor/m-1", "vendor/m-1", "/api/v1/generation", []string{": OPENROUTER PROCESSING", `"cost":0.00125`},
		},
		{
			"acme.openai.azure.com", `{"headers": {"Api-Key": "KEY"}, "meter": "openai"}`,
			map[string]string{"/openai/deployments/m-2/chat/completions?api-version=2024-10-21": chat}, "", "m-2", "/openai/deployments/m-2/images/generations?api-version=2024-10-21", []string{"prompt_filter_results"},
		},
		{
			"bedrock-runtime.us-east-1.amazonaws.com", `{"headers": {"Authorization": "Bearer KEY"}, "meter": "openai"}`,
			map[string]string{"/openai/v1/chat/completions": chat}, "vendor.m-3-1:0", "vendor.m-3-1:0", "/model/vendor.m-3-1:0/converse", nil,
		},
	} {
		if err := w.Net.AddHost(s.host, fmt.Sprintf("198.51.100.%d", 140+i), fmt.Sprintf("2001:db8:1::%d", 140+i)); err != nil {
			t.Fatal(err)
		}
		server := &models.Server{Key: harness.TestSecret}
		if err := w.Net.ServeHTTP(s.host, server); err != nil {
			t.Fatal(err)
		}
		box := w.Create(map[string]any{
			"network_policy": harness.Custom(s.host),
			"attach_headers": map[string]any{s.host: json.RawMessage(strings.ReplaceAll(s.rule, "KEY", harness.TestSecret))},
		})
		const post = "curl -k -sS -w '%{http_code}' -H 'Content-Type: application/json' --data '"
		model, got := "", ""
		if s.model != "" {
			model = fmt.Sprintf(`"model":%q,`, s.model)
		}
		requests := 0
		for path, body := range s.calls {
			for _, stream := range []string{"true", "false"} {
				out := w.MustSh(box, post+strings.NewReplacer("MODEL", model, "STREAM", stream).Replace(body)+"' 'https://"+s.host+path+"'")
				harness.Contains(t, out, "hello", "200")
				got += out
				requests++
			}
		}
		harness.Contains(t, got, s.marks...)
		harness.Contains(t, w.MustSh(box, post+`{"model":"m"}' 'https://`+s.host+s.refused+"'"), "boxgate: ", "403")
		want := models.Usage{}
		for _, r := range server.Requests() {
			want.Input, want.Output = want.Input+r.Usage.Input, want.Output+r.Usage.Output
		}
		var view struct {
			Usage struct {
				Models struct {
					Requests int
					Models   []struct {
						Model string
					}
					Input      int `json:"input_tokens"`
					Output     int `json:"output_tokens"`
					CacheRead  int `json:"cache_read_tokens"`
					CacheWrite int `json:"cache_write_tokens"`
				}
			}
		}
		w.Until("the use of models is counted", func() bool {
			err := w.Client.Get(t.Context(), "/v2/box/"+box, &view)
			return err == nil && view.Usage.Models.Requests >= requests
		})
		used := view.Usage.Models
		if used.Requests != requests || len(used.Models) != 1 || used.Models[0].Model != s.counted || used.Input+used.CacheRead+used.CacheWrite != want.Input || used.Output != want.Output {
			t.Errorf("%s: counted %+v, the server %+v in %d requests", s.host, used, want, requests)
		}
	}
}
