package lifecycle

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// TestTheLargestEnvironmentStillRunsCommands: the kernel accepts all variables and arguments that the API accepts.
func TestTheLargestEnvironmentStillRunsCommands(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	vars := map[string]string{"BIG": strings.Repeat("x", 128<<10-5)}
	for i := range 7 {
		vars[fmt.Sprintf("MORE_%d", i)] = strings.Repeat("y", 120<<10)
	}
	rules := map[string]any{}
	for host := range 8 {
		placeholders := map[string]string{}
		for i := range 64 {
			placeholders[fmt.Sprintf("P%d_%0120d", host, i)] = "v"
		}
		rules[fmt.Sprintf("h%d.example.com", host)] = map[string]any{"placeholders": placeholders}
	}
	box := w.Create(map[string]any{"env_vars": vars, "attach_headers": rules})
	if out := w.MustSh(box, "echo ${#BIG}; : "+strings.Repeat("z", 100<<10)); out != fmt.Sprintf("%d\n", 128<<10-5) {
		t.Errorf("the box says %q", out)
	}
	for name, body := range map[string]map[string]any{
		"one variable":  {"env_vars": map[string]string{"BIG": strings.Repeat("x", 128<<10)}},
		"all variables": {"env_vars": map[string]string{"A": strings.Repeat("x", 4<<20)}},
	} {
		if err := w.Client.Do(t.Context(), "POST", "/v2/box", body, nil); err == nil || !strings.Contains(err.Error(), "/env_vars") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPatchesOfManyAtOnce: concurrent patches all succeed, and no change is lost.
func TestPatchesOfManyAtOnce(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{})
	const hosts = 48
	var all sync.WaitGroup
	for i := range hosts {
		all.Go(func() {
			rule := map[string]any{fmt.Sprintf("h%d.example.com", i): map[string]string{"X": "1"}}
			if err := w.Client.Do(t.Context(), "PATCH", api.BoxPath(box, "config/attach-headers"), rule, nil); err != nil {
				t.Errorf("host %d: %v", i, err)
			}
		})
	}
	all.Wait()
	var view struct{ Rules map[string]any }
	if err := w.Client.Get(t.Context(), api.BoxPath(box, "config/attach-headers"), &view); err != nil || len(view.Rules) != hosts {
		t.Errorf("%d rules are left, %v", len(view.Rules), err)
	}
}
