package harness

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/strict"
	"boxgate/policy"
	"boxgate/quota"
)

// TestFilesOfAPrompt: a prompt has at most ten files of 10 MiB, as in the SDK, however they are sent.
func TestFilesOfAPrompt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		files, size int
		want        string // part of the error
	}{{1, maxFile, ""}, {maxFiles, 1 << 10, ""}, {maxFiles + 1, 1, "/files: at most 10 files"}, {1, maxFile + 3, "/files/0/data: is larger"}} {
		for form, send := range map[string]func(content []byte, n int) (string, []byte){"JSON": asJSON, "form": asForm} {
			media, body := send(bytes.Repeat([]byte("x"), tt.size), tt.files)
			r := httptest.NewRequest("POST", "/", bytes.NewReader(body))
			r.Header.Set("Content-Type", media)
			e, got := &Endpoints{Bodies: strict.Bodies{Most: MaxBody, Time: BodyTime}}, runBody{}
			err := e.decode(httptest.NewRecorder(), r, &got)
			if err == nil {
				err = got.check()
			}
			if tt.want == "" && (err != nil || len(got.Files) != tt.files || base64.StdEncoding.DecodedLen(len(got.Files[0].Data)) < tt.size) {
				t.Errorf("%d files of %d bytes as %s: %d, %v", tt.files, tt.size, form, len(got.Files), err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%d files of %d bytes as %s: %v", tt.files, tt.size, form, err)
			}
		}
	}
}

// TestWebhookIsBounded: the webhook of a run, which stays in memory until its end, is not as large as a body with files may be.
func TestWebhookIsBounded(t *testing.T) {
	t.Parallel()
	const url = "https://example.com/"
	many := map[string]string{}
	for i := range maxHeaders + 1 {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	for want, hook := range map[string]webhookBody{
		"":                            {URL: url, Headers: map[string]string{"X": strings.Repeat("v", maxHeader-1)}},
		"/webhook/url: must be at":    {URL: url + strings.Repeat("p", maxURL)},
		"/webhook/headers: at most":   {URL: url, Headers: many},
		"/webhook/headers: each must": {URL: url, Headers: map[string]string{"X": strings.Repeat("v", maxHeader)}},
	} {
		body := runBody{Prompt: "p", Webhook: hook}
		if err := body.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestBodyBeyondTheLimit: it is too large in either form, and not incomplete.
func TestBodyBeyondTheLimit(t *testing.T) {
	t.Parallel()
	for form, send := range map[string]func(content []byte, n int) (string, []byte){"JSON": asJSON, "form": asForm} {
		media, body := send(bytes.Repeat([]byte("x"), 2000), 1)
		for _, tt := range []struct {
			most int64
			sent []byte
			want int
		}{{int64(len(body)), body, 0}, {int64(len(body)) - 1, body, http.StatusRequestEntityTooLarge}, {1 << 20, body[:1000], http.StatusBadRequest}} {
			r := httptest.NewRequest("POST", "/", bytes.NewReader(tt.sent))
			r.Header.Set("Content-Type", media)
			err, status := (&Endpoints{Bodies: strict.Bodies{Most: tt.most}}).decode(httptest.NewRecorder(), r, &runBody{}), 0
			if err != nil {
				status, _ = problem.StatusOf(err)
			}
			if status != tt.want {
				t.Errorf("%s: %d of %d bytes of at most %d: %v", form, len(tt.sent), len(body), tt.most, err)
			}
		}
	}
}

// watched is a box with a harness that notes what a key holds in memory during each command.
type watched struct {
	scripted
	book *quota.Book
	held []int64
}

func (b *watched) Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, out, stderr io.Writer) (api.ExecResult, error) {
	use, _ := b.book.Shared(quota.Memory)
	if b.held = append(b.held, use.Used); len(b.held) == 1 {
		_, _ = io.WriteString(out, "/tmp/prompt-files-x")
		return api.ExecResult{}, nil
	}
	return b.scripted.Exec(ctx, id, req, out, stderr)
}

// Box finds the box, whatever its name.
func (b *watched) Box(context.Context, string) (api.Box, error) {
	return api.Box{ID: "box1", Hosted: api.Hosted{CustomRunner: &api.CustomRunner{Command: "harness"}}}, nil
}

// TestMemoryOfFilesDuringARun: the quota of a key counts the files of a prompt until they are in the box. Runs take hours, and one with many
// files would leave the key, or with an admin key everybody, no memory for other requests.
func TestMemoryOfFilesDuringARun(t *testing.T) {
	t.Parallel()
	for form, send := range map[string]func(content []byte, n int) (string, []byte){"JSON": asJSON, "form": asForm} {
		box := &watched{scripted: scripted{answers: []string{answer("fine", "s")}}, book: quota.New(quota.Config{Defaults: quota.Limits{quota.Memory: 64 << 20}})}
		e := &Endpoints{Runner: Runner{Commands: box, Settings: box, History: history.New(nil)}, Boxes: box, Bodies: strict.Bodies{Most: MaxBody}}
		scope, end := box.book.Open(quota.Holder{Type: quota.APIKey, ID: "ci"})
		media, body := send(bytes.Repeat([]byte("x"), 1<<20), 3)
		r := httptest.NewRequestWithContext(quota.WithScope(api.WithCaller(t.Context(), api.Caller{Role: api.RoleAdmin}), scope), "POST", "/", bytes.NewReader(body))
		r.Header.Set("Content-Type", media)
		r.SetPathValue("id", "box1")
		if _, err := e.run(httptest.NewRecorder(), r); err != nil {
			t.Fatal(err)
		}
		if len(box.held) < 2 || box.held[0] < 3<<20 || box.held[1] != 0 {
			t.Errorf("as %s, the key holds %d bytes while the files are written and while the harness runs", form, box.held)
		}
		end()
		if use, _ := box.book.Shared(quota.Memory); use.Used != 0 {
			t.Errorf("as %s, the key holds %d bytes after the run", form, use.Used)
		}
	}
}

func asJSON(content []byte, n int) (string, []byte) {
	file := fmt.Sprintf(`{"data":%q,"media_type":"image/png"}`, base64.StdEncoding.EncodeToString(content))
	return "application/json", []byte(`{"prompt":"x","files":[` + strings.Join(slices.Repeat([]string{file}, n), ",") + `]}`)
}

func asForm(content []byte, n int) (string, []byte) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	_ = form.WriteField("prompt", "x") // to memory
	for range n {
		part, _ := form.CreateFormFile("files", "a.png")
		_, _ = part.Write(content)
	}
	_ = form.Close()
	return form.FormDataContentType(), body.Bytes()
}
