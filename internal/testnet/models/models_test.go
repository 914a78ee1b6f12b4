package models

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// ask sends a request and returns the status and the body.
func ask(t *testing.T, s *Server, path, key, body string) (int, string) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s: no Retry-After", path)
	}
	return resp.StatusCode, string(text)
}

// TestAPIs: each API streams and answers whole, counts its tokens, calls the client's tool, and refuses as instructed.
func TestAPIs(t *testing.T) {
	t.Parallel()
	const schema = `{"properties":{"command":{"type":"string"}}}`
	for path, form := range map[string]struct{ request, end, call, tokens string }{
		"/v1/messages": {
			`{"model":"m","max_tokens":9,"stream":STREAM,"messages":[{"role":"user","content":"PROMPT"}],"tools":[{"name":"Bash","input_schema":` + schema + `}]}`,
			"event: message_stop\n", `"name":"Bash"`, `"cache_creation_input_tokens":30`,
		},
		"/v1/responses": {
			`{"model":"m","stream":STREAM,"input":"PROMPT","tools":[{"type":"function","name":"shell","parameters":` + schema + `}]}`,
			"event: response.completed\n", `"name":"shell"`, `"input_tokens":110`,
		},
		"/v1/chat/completions": {
			`{"model":"m","stream":STREAM,"messages":[{"role":"user","content":"PROMPT"}],"tools":[{"type":"function","function":{"name":"bash","parameters":` + schema + `}}]}`,
			"data: [DONE]\n", `"name":"bash"`, `"prompt_tokens":110`,
		},
	} {
		s := &Server{Key: "k"}
		try := func(key, stream, prompt string) (int, string) {
			return ask(t, s, path, key, strings.NewReplacer("STREAM", stream, "PROMPT", prompt).Replace(form.request))
		}
		if status, _ := try("wrong", "true", "model: say hello"); status != http.StatusUnauthorized {
			t.Errorf("%s: a wrong key: %d", path, status)
		}
		if status, text := try("k", "true", "model: say hello"); status != 200 || !strings.Contains(text, form.end) || !strings.Contains(text, `hello`) || !strings.Contains(text, form.tokens) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if status, text := try("k", "false", "model: say hello"); status != 200 || !strings.HasPrefix(text, "{") || !strings.Contains(text, `hello`) || !strings.Contains(text, form.tokens) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if status, text := try("k", "true", "model: run ls"); status != 200 || !strings.Contains(text, form.call) || !strings.Contains(text, `command`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if status, text := try("k", "true", "model: spend 5000\\nmodel: loop ls"); status != 200 || !strings.Contains(text, form.call) || !strings.Contains(text, "_tokens\":5002") {
			t.Errorf("%s: %d %s", path, status, text)
		}
		if status, text := try("k", "true", "model: break\\nmodel: say hello"); status != 200 || strings.Contains(text, form.end) || !strings.Contains(text, "Overloaded") {
			t.Errorf("%s: %d %s", path, status, text)
		}
		for i, want := range []int{429, 429, 200} {
			if status, _ := try("k", "true", "model: fail 2 429\\nmodel: say hello"); status != want {
				t.Errorf("%s: request %d: %d", path, i, status)
			}
		}
		if all := s.Requests(); len(all) != 9 || all[0].Status != http.StatusUnauthorized || all[1].Usage.Input != 110 || all[1].Model != "m" {
			t.Errorf("%s: %+v", path, all)
		}
	}
}

// TestBedrock: the path names the model, and whether the events of Anthropic are sent in messages of Amazon Bedrock.
func TestBedrock(t *testing.T) {
	t.Parallel()
	s := &Server{Key: "k"}
	const body = `{"anthropic_version":"bedrock-2023-05-31","max_tokens":9,"messages":[{"role":"user","content":"model: say hello"}]}`
	status, text := ask(t, s, "/model/anthropic.m-v1%3A0/invoke", "k", body)
	if status != http.StatusOK || !strings.Contains(text, `"text":"hello"`) {
		t.Errorf("%d %s", status, text)
	}
	status, text = ask(t, s, "/model/anthropic.m-v1%3A0"+streamedInvoke, "k", body)
	var events []string
	for rest := []byte(text); len(rest) >= 16; {
		size, headers := binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
		var c struct{ Bytes []byte }
		if err := json.Unmarshal(rest[12+headers:size-4], &c); err != nil || binary.BigEndian.Uint32(rest[size-4:]) != crc32.ChecksumIEEE(rest[:size-4]) {
			t.Fatalf("%v: %q", err, rest)
		}
		events, rest = append(events, string(c.Bytes)), rest[size:]
	}
	if all := strings.Join(events, "\n"); status != http.StatusOK || len(events) < 5 || !strings.Contains(all, `"text":"hello"`) || !strings.Contains(events[len(events)-1], "message_stop") {
		t.Errorf("%d %s", status, all)
	}
	if got := s.Requests(); len(got) != 2 || got[1].Model != "anthropic.m-v1:0" {
		t.Errorf("%+v", got)
	}
}
