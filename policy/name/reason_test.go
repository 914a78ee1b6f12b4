package name

import (
	"os"
	"strings"
	"testing"
)

// TestReasonsAreDocumented: the set is closed, and docs/reasons.md explains exactly its members.
func TestReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("reason.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, r := range Reasons() {
		listed[string(r)] = true
		if !strings.Contains(string(text), "\n| `"+string(r)+"` |") {
			t.Errorf("docs/reasons.md does not explain %s", r)
		}
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "| `"); ok {
			if r, _, _ := strings.Cut(rest, "`"); !listed[r] {
				t.Errorf("docs/reasons.md explains %s, which is not a reason", r)
			}
		}
	}
	if n := strings.Count(string(source), " Reason = "); n != len(listed) {
		t.Errorf("reason.go declares %d reasons, Reasons lists %d", n, len(listed))
	}
}
