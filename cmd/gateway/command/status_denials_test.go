package command

import (
	"strings"
	"testing"
	"time"

	"boxgate/api/apitest"
	"boxgate/policy"
)

// TestStatusListsDeniedBoxes: the status lists the boxes with the most denials.
func TestStatusListsDeniedBoxes(t *testing.T) {
	host := serveInMemory(t)
	for box, count := range map[string]uint64{"demo": 2, "web": 7} {
		e := apitest.Decision(policy.BoxID(box+"-id"), time.Now().Unix(), "a.example", policy.Deny)
		e.BoxName, e.Count = box, count
		host.AddDecision(e)
	}
	out, status := runCommandLine(t, "status")
	if status != 0 || !strings.Contains(out, "refused most  web 7, demo 2; see `gateway log --summary`") {
		t.Errorf("exit %d\n%s", status, out)
	}
}
