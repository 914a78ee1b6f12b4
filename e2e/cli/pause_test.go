package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

func TestBoxPauseAndResume(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "sleeper"})
	if out, code := w.GatewayCommand("box", "pause", "sleeper"); code != 0 || strings.Join(strings.Fields(out), " ") != box+" paused" {
		t.Errorf("pause: %d %s", code, out)
	}
	if w.Metric(`boxgate_boxes{state="paused"}`) != 1 || w.Metric(`boxgate_boxes{state="idle"}`) != 0 {
		t.Error("the metrics do not show a paused box")
	}
	out, code := w.GatewayCommand("--json", "box", "resume", "sleeper")
	var view struct{ ID, Status string }
	if err := json.Unmarshal([]byte(out), &view); code != 0 || err != nil || view.ID != box || view.Status != "idle" {
		t.Errorf("resume: %d %s %v", code, out, err)
	}
	if out, code := w.GatewayCommand("box", "pause", "nobody"); code != 1 || !strings.Contains(out, "nobody") {
		t.Errorf("pause of no box: %d %s", code, out)
	}
}
