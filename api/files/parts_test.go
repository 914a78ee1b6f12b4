package files

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += n
	return n, err
}

func formOf(t *testing.T, body io.Reader) *Parts {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "/", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	parts, err := NewParts(r)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

const partHead = "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n"

// TestAttackLongHeads: what precedes the content of a part is read up to a bound only; its content, also of a part that is skipped, has none.
func TestAttackLongHeads(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	for what, text := range map[string]string{
		"a line": partHead + "X: " + long, "many lines": partHead + strings.Repeat("X: y\r\n", 1<<18), "a line before the first part": long, "lines before it": strings.Repeat("x\r\n", 1<<18),
		"after a part": partHead + "\r\ncontent\r\n" + partHead + "X: " + long,
	} {
		body := &counter{r: strings.NewReader(text)}
		parts := formOf(t, body)
		_, err := parts.Next()
		if err == nil {
			_, err = parts.Next()
		}
		if err == nil || errors.Is(err, io.EOF) || body.n > 2*maxPartHead {
			t.Errorf("%s: %d bytes are read: %v", what, body.n, err)
		}
	}
	parts := formOf(t, strings.NewReader(partHead+"\r\n"+long+"\r\n"+partHead+"\r\nshort\r\n--b--\r\n"))
	if _, err := parts.Next(); err != nil {
		t.Fatal(err)
	}
	second, err := parts.Next()
	if err != nil {
		t.Fatal("after a long part that is skipped: ", err)
	}
	if text, err := io.ReadAll(second); string(text) != "short" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := parts.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
