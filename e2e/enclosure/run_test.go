package enclosure

import (
	"encoding/json"
	"testing"
)

// TestRunReachesWhatThePolicyAllows: the command runs as the user, with the host's files. Other hosts are refused by
// name, and shown immediately and at the end. The exit status is the command's.
func TestRunReachesWhatThePolicyAllows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := []string{"--policy", `{"mode":"custom","allowed_domains":["www.example.com"]}`}
	r := w.must(policy, "id -u; pwd; curl -sS https://www.example.com/ >/dev/null && echo reached; echo kept > file")
	contains(t, "the output", r.out, user+"\n", w.home()+"\n", "reached\n")
	contains(t, "the summary", r.errout, "reached www.example.com:443", "refused nothing")
	r = w.run(append(policy, "--", "sh", "-c", "cat file; curl -sS -o /dev/null -w '%{http_code}\\n' https://api.example.com/; exit 7")...)
	if r.status != 7 {
		t.Errorf("exit %d", r.status)
	}
	contains(t, "the output", r.out, "kept\n403\n")
	contains(t, "what was said", r.errout, `refused api.example.com`, "not_allowed", `"api.example.com`)
	t.Log(r.errout)
}

// TestRunWarnsOfAllowedAddress: an allowed address that no policy opens is named, except in a report as JSON.
func TestRunWarnsOfAllowedAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("--allow", "10.0.0.1", "--", "true")
	contains(t, "what was said", r.errout, `gateway: warning: "10.0.0.1" is in a protected range, which no policy opens`)
	if r := w.run("--json", "--allow", "10.0.0.1", "--", "true"); r.status != 0 || !json.Valid([]byte(r.errout)) {
		t.Errorf("exit %d: %s", r.status, r.errout)
	}
}

// TestRunEndsRefusedInstall: a refused npm install stops at a 403 instead of retrying for minutes. --allow and --json: the
// allowed host is reached, and the report lists the refused one.
func TestRunEndsRefusedInstall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("--json", "--allow", "www.example.com", "--", "sh", "-c",
		"curl -sS https://www.example.com/ >/dev/null && echo reached; HOME=$PWD npm install --no-audit --no-fund --no-update-notifier --registry https://registry.npmjs.org/ tiny 2>&1; exit 7")
	if r.status != 7 {
		t.Errorf("exit %d", r.status)
	}
	contains(t, "the output", r.out, "reached\n", "E403")
	var got struct {
		ExitStatus       int `json:"exit_status"`
		Reached, Refused []struct{ Host, Allow string }
	}
	if err := json.Unmarshal([]byte(r.errout), &got); err != nil || got.ExitStatus != 7 || len(got.Reached) != 1 || got.Reached[0].Host != "www.example.com" {
		t.Fatal(err, r.errout)
	}
	for _, d := range got.Refused {
		if d.Host == "registry.npmjs.org" && d.Allow == "registry.npmjs.org:443" {
			return
		}
	}
	t.Error(r.errout)
}
