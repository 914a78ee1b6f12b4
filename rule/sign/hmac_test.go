package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"boxgate/rule"
)

// changing changes the body of a request when a part of the text to sign is written.
type changing struct {
	text string
	r    *request
}

func (c *changing) Write(p []byte) (int, error) {
	if len(p) > 0 {
		c.r.Body = append([]byte("changed "), c.r.Body...)
	}
	c.text += string(p)
	return len(p), nil
}

// TestBodyIsHashedOnce: a body of a mebibyte costs one hash, however often the template has it.
func TestBodyIsHashedOnce(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("body"))
	w := &changing{r: &request{Message: &rule.Message{Body: []byte("body")}}}
	fill(w, strings.Repeat("{body_sha256}", 3), "", w.r)
	if want := strings.Repeat(hex.EncodeToString(sum[:]), 3); w.text != want {
		t.Errorf("signed %s, want %s", w.text, want)
	}
}
