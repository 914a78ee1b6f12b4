package command

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestLogSummary: denials are counted by box, destination and reason, the most frequent first, with a remedy. Allowed
// connections do not count, and an event that stands for many denials counts as many.
func TestLogSummary(t *testing.T) {
	host := serveInMemory(t)
	host.Add(t, api.CreateRequest{Name: "web"})
	now := time.Now().Unix()
	deny := func(box policy.BoxID, boxName, to string, count uint64) {
		e := apitest.Decision(box, now, to, policy.Deny)
		e.BoxName, e.Port, e.Protocol, e.Count = boxName, 443, policy.TCP, count
		host.AddDecision(e)
	}
	if out, status := runCommandLine(t, "log", "--summary"); status != 0 || out != "There are no denials.\n" {
		t.Errorf("exit %d: %s", status, out)
	}
	deny("box1", "demo", "rare.example", 0)
	deny("box1", "demo", "often.example", 40)
	deny("box1", "demo", "often.example", 2)
	deny("box3", "web", "often.example", 5)
	host.AddDecision(apitest.Decision("box1", now, "allowed.example", policy.Allow))
	for _, args := range []string{"log --summary", "log --summary --since 1h"} {
		out, status := runCommandLine(t, strings.Fields(args)...)
		lines := strings.Split(out, "\n")
		if status != 0 || len(lines) < 5 || strings.Contains(out, "allowed.example") || strings.Count(out, "often.example:443") < 2 {
			t.Fatalf("%s: exit %d\n%s", args, status, out)
		}
		for i, want := range []string{"COUNT", "42     demo", "5      web", "1      demo", "  not_allowed: "} {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s: line %d is %q, want %q", args, i, lines[i], want)
			}
		}
	}
	out, _ := runCommandLine(t, "log", "--summary", "--json")
	var got struct {
		Denials []denialCount
		Total   int
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Total != 48 || len(got.Denials) != 3 || got.Denials[0].Count != 42 || got.Denials[0].Host != "often.example" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, status := runCommandLine(t, "log", "--summary", "-f"); status != 2 {
		t.Errorf("exit %d: %s", status, out)
	}
}

// TestSummaryIsBounded: names chosen by a box do not fill the memory, and the total is still right.
func TestSummaryIsBounded(t *testing.T) {
	t.Parallel()
	var s logSummary
	for i := range maxSummarized + 100 {
		s.add(audit.Event{Time: time.Unix(1, 0), Box: "b", Name: fmt.Sprintf("n%d.example", i), Verdict: policy.Deny, Reason: name.ReasonNotAllowed}, true)
	}
	if len(s.rows()) != maxSummarized || s.other != 100 || s.total != maxSummarized+100 {
		t.Error(len(s.rows()), s.other, s.total)
	}
}

// TestStatusListsDeniedBoxes: the status lists the boxes with the most denials, and those that the kernel did not remove.
func TestStatusListsDeniedBoxes(t *testing.T) {
	host := serveInMemory(t)
	for box, count := range map[string]uint64{"demo": 2, "web": 7} {
		e := apitest.Decision(policy.BoxID(box+"-id"), time.Now().Unix(), "a.example", policy.Deny)
		e.BoxName, e.Count = box, count
		host.AddDecision(e)
	}
	host.Unremoved = []string{"bg-1"}
	out, status := runCommandLine(t, "status")
	if status != 0 || !strings.Contains(out, "refused most  web 7, demo 2; see `gateway log --summary`") {
		t.Errorf("exit %d\n%s", status, out)
	}
	if !strings.Contains(out, "FAILED: the interface bg-1 of a closed box could not be removed") {
		t.Errorf("a box that the kernel keeps is not listed:\n%s", out)
	}
}
