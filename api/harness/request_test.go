package harness

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"boxgate/api/problem"
	"boxgate/api/strict"
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
