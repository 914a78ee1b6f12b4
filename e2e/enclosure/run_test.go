package enclosure

import (
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
	r = w.run(append(policy, "--", "sh", "-c", "cat file; curl -sS https://api.example.com/; echo $?; exit 7")...)
	if r.status != 7 {
		t.Errorf("exit %d", r.status)
	}
	contains(t, "the output", r.out, "kept\n35\n")
	contains(t, "what was said", r.errout, `refused api.example.com`, "not_allowed", `"api.example.com`)
	t.Log(r.errout)
}
