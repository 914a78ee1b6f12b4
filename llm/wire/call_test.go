package wire

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"boxgate/llm"
)

const (
	messages = "/v1/messages"
	chat     = "/v1/chat/completions"
	converse = "/model/anthropic.claude-x/converse"
	gemini   = "/v1beta/models/gemini-x:generateContent"
)

// TestCalls: the model and the largest answer of a request.
func TestCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor     llm.Vendor
		path, body string
		model      string
		most       uint64
		others     []string
	}{
		{llm.Anthropic, messages, `{"model":"claude-x","messages":[{"content":"{\"model\":\"y\"}"}],"max_tokens":100}`, "claude-x", 100, nil},
		{llm.Anthropic, messages, `{"model":"claude-x","tools":[{"name":"model","input_schema":{"properties":{"model":{}}}}]}`, "claude-x", 0, nil},
		{llm.Anthropic, messages, `{"messages":[{"content":[{"input":{"model":"y","max_tokens":1}}]}],"mod\u0065l":"claude-x"}`, "claude-x", 0, nil},
		{llm.Anthropic, "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x@2025:streamRawPredict", `{"max_tokens":5}`, "claude-x@2025", 5, nil},
		{llm.OpenAI, chat, `{"model":"gpt-x","max_tokens":10,"max_completion_tokens":20}`, "gpt-x", 20, nil},
		{llm.OpenAI, chat, `{"model":"gpt-x","max_tokens":null,"n":null}`, "gpt-x", 0, nil},
		{llm.OpenAI, chat, `{"model":"gpt-x","max_tokens":10,"n":4}`, "gpt-x", 40, nil},
		{llm.OpenAI, chat, `{"model":"gpt-x","n":2}`, "gpt-x", 2 * unstatedMax, nil},
		{llm.OpenAI, "/api/v1/chat/completions", `{"model":"a","models":["b","c/d:free"]}`, "a", 0, []string{"b", "c/d:free"}},
		{llm.OpenAI, "/openai/deployments/mine/chat/completions", `{"model":"a"}`, "mine", 0, []string{"a"}},
		{llm.OpenAI, "/v1/responses", `{"model":"gpt-x","max_output_tokens":7,"background":false}`, "gpt-x", 7, nil},
		{llm.Google, gemini, `{"contents":[{"parts":[{"text":"generationConfig"}]}],"generationConfig":{"maxOutputTokens":9,"candidateCount":2}}`, "gemini-x", 18, nil},
		{llm.Google, gemini, `{"generation_config":{"max_output_tokens":9}}`, "gemini-x", 9, nil},
		{llm.Google, gemini, `{"model":"models/gemini-x"}`, "gemini-x", 0, nil},
		{llm.Bedrock, "/model/us.anthropic.claude-x-v1%3A0/invoke-with-response-stream", `{"max_tokens":100,"messages":[]}`, "us.anthropic.claude-x-v1:0", 100, nil},
		{llm.Bedrock, "/model/anthropic.claude-x/invoke", `{"max_tokens":100,"model":"other","inferenceConfig":{"maxTokens":5}}`, "anthropic.claude-x", 100, nil},
		{llm.Bedrock, "/bedrock/model/amazon.nova/converse", `{"max_tokens":5,"inferenceConfig":{"maxTokens":7}}`, "amazon.nova", 7, nil},
		{llm.Bedrock, "/model/amazon.nova/converse-stream", `{"additionalModelRequestFields":{"max_tokens":9,"inferenceConfig":{"max_new_tokens":8}}}`, "amazon.nova", 9, nil},
		{llm.Bedrock, "/model/arn:aws:bedrock:eu-west-1:1:inference-profile%2Fmine/converse", `{}`, "arn:aws:bedrock:eu-west-1:1:inference-profile/mine", 0, nil},
		// Each prompt of a list is answered.
		{llm.OpenAI, "/v1/completions", `{"model":"gpt-x","max_tokens":10,"prompt":["a","b","c"]}`, "gpt-x", 30, nil},
		{llm.OpenAI, "/v1/completions", `{"model":"gpt-x","max_tokens":10,"n":2,"prompt":[[1,2],[3]]}`, "gpt-x", 40, nil},
		{llm.OpenAI, "/v1/completions", `{"model":"gpt-x","max_tokens":10,"prompt":[1,2,3]}`, "gpt-x", 10, nil},
		{llm.OpenAI, "/v1/completions", `{"model":"gpt-x","prompt":["a","b"]}`, "gpt-x", 2 * unstatedMax, nil},
		// Many servers leave out limits that belong to another endpoint.
		{llm.OpenAI, "/v1/responses", `{"model":"gpt-x","max_tokens":1,"max_completion_tokens":1}`, "gpt-x", 0, nil},
		{llm.OpenAI, "/v1/responses/compact", `{"model":"gpt-x","max_output_tokens":1}`, "gpt-x", 0, nil},
		{llm.OpenAI, "/v1/completions", `{"model":"gpt-x","max_completion_tokens":1}`, "gpt-x", 0, nil},
		{llm.OpenAI, chat, `{"model":"gpt-x","max_output_tokens":1}`, "gpt-x", 0, nil},
	} {
		got, err := ReadCall(c.vendor, c.path, "", []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		want := llm.Call{Vendor: c.vendor, Model: c.model, Max: c.most, Input: uint64(len(c.body))}
		if strings.Contains(c.body, `"models"`) {
			want.Others = strings.Join(c.others, " ")
		}
		if got.Call != want || !slices.Equal(got.Models, append([]string{c.model}, c.others...)) {
			t.Errorf("%s: %+v; want %+v and %v", c.body, got, want, c.others)
		}
	}
}

// TestCallsThatServersReadDifferently: no request is metered by one reading and served by another.
func TestCallsThatServersReadDifferently(t *testing.T) {
	t.Parallel()
	many := `{"model":"a"` + strings.Repeat(`,"k`, 0)
	for i := range 300 {
		many += `,"k` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26)) + `":1`
	}
	for _, c := range []struct {
		vendor      llm.Vendor
		path, query string
		body        string
		want        error
	}{
		{llm.Anthropic, messages, "", `{"model":"a","model":"b"}`, ErrKeys},
		{llm.Anthropic, messages, "", `{"model":"a","mod\u0065l":"b"}`, ErrKeys},
		{llm.Anthropic, messages, "", `{"model":"a","Model":"b"}`, ErrKeys},
		{llm.Anthropic, messages, "", `{"Model":"a"}`, ErrKeys},
		{llm.OpenAI, chat, "", `{"model":"a","maxTokens":5}`, ErrKeys},
		{llm.OpenAI, chat, "", `{"model":"a","max_to` + "\u212a" + `ens":5}`, ErrKeys},
		{llm.OpenAI, chat, "", `{"model":"a","max_to\u212aens":5}`, ErrKeys},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":1,"max_tokens":9}`, ErrKeys},
		{llm.OpenAI, chat, "", `{"model":"a","__proto__":{"model":"b"}}`, ErrKeys},
		{llm.OpenAI, chat, "", many + "}", ErrKeys},
		{llm.Google, gemini, "", `{"generationConfig":{},"generation_config":{"maxOutputTokens":9}}`, ErrKeys},
		{llm.Google, gemini, "", `{"generationConfig":{"maxOutputTokens":9,"max_output_tokens":1}}`, ErrKeys},
		{llm.Google, gemini, "", `{"generationConfig":[9]}`, ErrMax},
		{llm.Google, gemini, "", `{"model":"models/other"}`, ErrModel},
		{llm.Google, gemini, "fields=candidates", `{}`, ErrQuery},
		{llm.Google, gemini, "%66ields=candidates", `{}`, ErrQuery},
		{llm.Google, gemini, "key=x&$alt=proto", `{}`, ErrQuery},
		{llm.Google, gemini, "$httpHeaders=X-Goog-FieldMask:candidates", `{}`, ErrQuery},
		{llm.Google, gemini, "callback=f", `{}`, ErrQuery},
		{llm.Google, "/v1beta/models", "", `{}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":-1}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":1.5}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":1e3}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":"5"}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":99999999999999999999}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","max_tokens":1` + strings.Repeat("0", 400) + `}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","n":1e9}`, ErrMax},
		{llm.OpenAI, chat, "", `{"model":"a","n":99999999}`, ErrMax},
		{llm.OpenAI, "/v1/responses", "", `{"model":"a","background":true}`, ErrBackground},
		{llm.OpenAI, "/v1/responses", "", `{"model":"a","background":"true"}`, ErrBackground},
		{llm.OpenAI, chat, "", `{"model":"a","models":"b"}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"a","models":[["b"]]}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"a","models":["b"` + strings.Repeat(`,"b"`, maxFallbacks) + `]}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":["a"]}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"a","fallbacks":["b"]}`, ErrFallbacks},
		{llm.Anthropic, messages, "", `{"model":"a","fallbacks":[{"model":"b"}]}`, ErrFallbacks},
		{llm.Anthropic, messages, "", `{"model":"a","fallback":"default"}`, ErrFallbacks},
		{llm.Bedrock, "/model/anthropic.a/converse", "", `{"additionalModelRequestFields":{"fallbacks":[{"model":"b"}]}}`, ErrFallbacks},
		{llm.OpenAI, "/v1/responses", "", `{"model":"a","tools":[{"type":"image_generation","model":"b"}]}`, ErrTool},
		{llm.Anthropic, messages, "", `{"model":"a","tools":[{"type":"advisor","mod\u0065l":"b"}]}`, ErrTool},
		{llm.OpenAI, chat, "", `{"model":null}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"a b"}`, ErrModel},
		{llm.OpenAI, chat, "", `{"model":"` + strings.Repeat("a", 300) + `"}`, ErrModel},
		{llm.OpenAI, chat, "", `{}`, ErrModel},
		{llm.OpenAI, chat, "", `[{"model":"a"}]`, ErrJSON},
		{llm.OpenAI, chat, "", `"model"`, ErrJSON},
		{llm.OpenAI, chat, "", ``, ErrJSON},
		{llm.OpenAI, chat, "", `model=a`, ErrJSON},
		{llm.OpenAI, chat, "", `{"model":"a"}{"model":"b"}`, ErrJSON},
		{llm.OpenAI, chat, "", `{"model":"a"} {}`, ErrJSON},
		{llm.OpenAI, chat, "", "\ufeff" + `{"model":"a"}`, ErrJSON},
		{llm.OpenAI, chat, "", "{\"model\":\"a\xff\"}", ErrJSON},
		{llm.OpenAI, chat, "", `{'model':'a'}`, ErrJSON},
		{llm.OpenAI, chat, "", `{"x":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `,"model":"a"}`, ErrJSON},
	} {
		if got, err := ReadCall(c.vendor, c.path, c.query, []byte(c.body)); !errors.Is(err, c.want) {
			t.Errorf("%s %.100s: %+v, %v; want %v", c.query, c.body, got, err, c.want)
		}
	}
}

// TestInputThatTheVendorAdds: requests whose input is not in their body.
func TestInputThatTheVendorAdds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor     llm.Vendor
		path, body string
		adds       bool
	}{
		{llm.OpenAI, "/v1/responses", `{"model":"a","previous_response_id":"r"}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","previous_response_id":null,"conversation":null}`, false},
		{llm.OpenAI, "/v1/responses", `{"model":"a","conversation":{"id":"c"}}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","prompt":{"id":"p"}}`, true},
		{llm.OpenAI, "/v1/completions", `{"model":"a","prompt":"p"}`, false},
		{llm.OpenAI, "/v1/responses", `{"model":"a","input":[{"type":"item_reference","id":"x"}]}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","input":[{"id":"x"}]}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","input":[{"content":[{"type":"input_file","file_\u0069d":"f"}]}]}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","input":[{"content":[{"file_url":"https://x"}]}]}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","tools":[{"type":"web_search"}]}`, true},
		{llm.OpenAI, "/v1/responses", `{"model":"a","tools":[{"type":"function","parameters":{"properties":{"url":{"type":"string"},"file_id":{}}}}]}`, false},
		{llm.OpenAI, chat, `{"model":"a","messages":[{"content":[{"image_url":{"url":"https://x"}}]}]}`, true},
		{llm.OpenAI, chat, `{"model":"a","messages":[{"content":[{"image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, false},
		{llm.OpenAI, chat, `{"model":"a","messages":[{"content":"file_id"}]}`, false},
		{llm.OpenAI, chat, `{"model":"a","messages":[{"content":[{"image_url":{"url":"` + strings.Repeat("x", 1000) + `"}}]}]}`, true},
		{llm.Anthropic, messages, `{"model":"a","messages":[{"content":[{"source":{"type":"url","url":"https://x"}}]}]}`, true},
		{llm.Anthropic, messages, `{"model":"a","messages":[{"content":[{"content":[{"source":{"file_id":"x"}}]}]}]}`, true},
		{llm.Anthropic, messages, `{"model":"a","mcp_servers":[{"url":"x"}]}`, true},
		{llm.Anthropic, messages, `{"model":"a","tools":[{"type":"bash_20250124"},{"type":"custom"},{"name":"x"}]}`, false},
		{llm.Anthropic, messages, `{"model":"a","tools":[{"type":"web_fetch_20250910"}]}`, true},
		{llm.Google, gemini, `{"contents":[{"parts":[{"fileData":{"fileUri":"gs://x"}}]}]}`, true},
		{llm.Google, gemini, `{"contents":[{"parts":[{"file_data":{"file_uri":"gs://x"}}]}]}`, true},
		{llm.Google, gemini, `{"cachedContent":"cachedContents/x"}`, true},
		{llm.Google, gemini, `{"tools":[{"functionDeclarations":[]}]}`, false},
		{llm.Google, gemini, `{"tools":[{"urlContext":{}}]}`, true},
		{llm.Bedrock, converse, `{"messages":[{"content":[{"document":{"source":{"s3Location":{"uri":"s3://x"}}}}]}]}`, true},
		{llm.Bedrock, converse, `{"promptVariables":{"a":{"text":"b"}}}`, true},
		{llm.Bedrock, "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Aprompt%2FX/converse", `{}`, true},
		{llm.Bedrock, converse, `{"toolConfig":{"tools":[{"systemTool":{"name":"nova_grounding"}}]}}`, true},
		{llm.Bedrock, converse, `{"toolConfig":{"tools":[{"toolSpec":{"name":"x"}}]}}`, false},
		{llm.Bedrock, converse, `{"additionalModelRequestFields":{"tools":[{"type":"web_search_20250305"}]}}`, true},
		{llm.Bedrock, converse, `{"additionalModelRequestFields":{"tools":[{"type":"computer_20250124"}]}}`, false},
	} {
		got, err := ReadCall(c.vendor, c.path, "", []byte(c.body))
		if err != nil || got.Adds != c.adds {
			t.Errorf("%s: %+v, %v; want %v", c.body, got, err, c.adds)
		}
	}
	open := NewReader(llm.Call{Vendor: llm.OpenAI, Input: 400, Adds: true})
	open.Feed([]byte("data: {}\n\n"))
	if u, _, complete := open.Result(false); complete || u.Input != 100+AddedInput {
		t.Errorf("an answer that is cut short counts %+v", u)
	}
}

// TestEndpoints: paths that ask a model, others, and paths that only some servers take for one.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]Endpoint{
		"anthropic /v1/messages": Asks, "anthropic /v1/messages/count_tokens": Free, "anthropic /v1/messages/batches": Unknown, "anthropic /v1/files": Unknown,
		"anthropic /v1/messages/": Unknown, "anthropic /v1//messages": Unknown, "anthropic /v1/x/../messages": Unknown, "anthropic /v1/%6dessages": Unknown,
		"anthropic messages": Unknown, "anthropic /v1/messages;x": Unknown, "anthropic /v1/complete": Unknown, "anthropic /v1/messages\\": Unknown,
		"openai /v1/chat/completions": Asks, "openai /v1/completions": Asks, "openai /v1/responses": Asks, "openai /v1/embeddings": Asks,
		"openai /v1/responses/resp_1/cancel": Unknown, "openai /v1/batches": Unknown, "openai /v1/images/generations": Unknown, "openai /v1/moderations": Free,
		"google /v1beta/models/g:generateContent": Asks, "google /v1beta/models/g:streamGenerateContent": Asks, "google /v1beta/models/g:countTokens": Free,
		"google /v1beta/models/g:batchGenerateContent": Unknown, "google /v1beta/models/g:predictLongRunning": Unknown, "google /v1beta/cachedContents": Unknown,
		"bedrock /model/m/converse": Asks, "bedrock /model/m%3A0/converse-stream": Asks, "bedrock /model/anthropic.m/invoke": Asks, "bedrock /model/m/count-tokens": Free,
		"bedrock /model/meta.llama/invoke": Unknown, "bedrock /model/m/invoke-with-bidirectional-stream": Unknown, "bedrock /model/m/async-invoke": Unknown,
		"bedrock /model/m%253A0/converse": Unknown, "bedrock /model/a/b/converse": Unknown, "bedrock /model/a%2F..%2Fb/converse": Unknown, "bedrock /model/%6d/converse": Unknown,
		"bedrock /model//converse": Unknown, "bedrock /converse": Unknown, "bedrock /guardrail/g/version/1/apply": Unknown, "bedrock /model/m%3b/converse": Unknown,
	} {
		vendor, path, _ := strings.Cut(path, " ")
		if got := EndpointOf(llm.Vendor(vendor), path); got != want {
			t.Errorf("%s %s: %d, want %d", vendor, path, got, want)
		}
	}
}

// TestRefusals: each is JSON with the members that the vendors' clients read.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for vendor, want := range map[llm.Vendor]string{
		llm.Anthropic: `{"error":{"message":"over \"it\"","type":"rate_limit_error"},"type":"error"}`,
		llm.OpenAI:    `{"error":{"code":"insufficient_quota","message":"over \"it\"","param":null,"type":"insufficient_quota"}}`,
		llm.Google: `{"error":{"code":429,"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","domain":"boxgate","reason":"MODEL_BUDGET"}],` +
			`"message":"over \"it\"","status":"RESOURCE_EXHAUSTED"}}`,
		llm.Bedrock: `{"message":"over \"it\""}`,
	} {
		if got := strings.TrimSpace(string(Refusal(vendor, 429, "model_budget", `over "it"`))); got != want {
			t.Errorf("%s: %s", vendor, got)
		}
		fields := RefusalFields(vendor, 429)
		if want := [][2]string{{"X-Amzn-Errortype", "ThrottlingException"}}; vendor == llm.Bedrock && !slices.Equal(fields, want) || vendor != llm.Bedrock && fields != nil {
			t.Errorf("%s: %v", vendor, fields)
		}
		for _, status := range []int{400, 403, 413} {
			if !json.Valid(Refusal(vendor, status, "model_denied", "no")) {
				t.Errorf("%s %d is not JSON", vendor, status)
			}
		}
	}
}

// FuzzReadCall: whatever is read as a request names the model that encoding/json finds, which ignores case and takes the last duplicate.
func FuzzReadCall(f *testing.F) {
	for _, body := range []string{`{"model":"a","max_tokens":5}`, `{"mod\u0065l":"a"}`, `{"model":"a","models":["b"]}`, `{"":{"model":"b"},"model":"a"}`, `{"a/b":1,"model":"x"}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		asked, err := ReadCall(llm.OpenAI, chat, "", body)
		if err != nil {
			return
		}
		var loose struct {
			Model     string
			Models    []string
			MaxTokens *uint64 `json:"max_tokens"`
		}
		if err := json.Unmarshal(body, &loose); err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		if loose.Model != asked.Model || !slices.Equal(append([]string{loose.Model}, loose.Models...), asked.Models) {
			t.Fatalf("%q is read as %+v, by encoding/json as %+v", body, asked, loose)
		}
		if loose.MaxTokens != nil && asked.Max < *loose.MaxTokens {
			t.Fatalf("%q may have %d tokens, read as %d", body, *loose.MaxTokens, asked.Max)
		}
	})
}
