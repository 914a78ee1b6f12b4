package sdk

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestDescriptionIsLinted: the description of the API passes the recommended rules of Redocly's linter.
func TestDescriptionIsLinted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	w, _ := newWorld(t)
	var doc json.RawMessage
	if err := w.Client.Do(t.Context(), "GET", "/openapi.json", nil, &doc); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.dir, "openapi.json")
	if err := os.WriteFile(path, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	err := lines(w, n.command(t.Context(), "lint.mjs", path), func(dec *json.Decoder) error {
		var problem struct{ Rule, At, Message string }
		if err := dec.Decode(&problem); err != nil {
			return err
		}
		t.Errorf("%s: %s (%s)", problem.At, problem.Message, problem.Rule)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
