package e2b

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAttackSandboxes: a token opens the box of the host name only, whatever box a header names; neither a box's name nor another path
// leads anywhere; and a stream ends with its key although a command of another key never stops writing.
func TestAttackSandboxes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	create := func(key string) (b struct{ SandboxID, EnvdAccessToken string }) {
		t.Helper()
		s.call(&b, http.StatusCreated, "-X", "POST", "-H", "X-API-KEY: "+key, "--json", `{"templateID": "base", "timeout": 300}`, "https://api."+domain+"/sandboxes")
		return b
	}
	one, two := create(s.key), create(s.key)
	at := func(id string) string { return "https://49983-" + id + "." + domain }
	token := func(text string) []string { return []string{"-H", "X-Access-Token: " + text} }
	status := func(want string, args ...string) {
		t.Helper()
		out := s.curl(append([]string{"-o", "/dev/null", "-w", "%{http_code}"}, args...)...)
		if !strings.Contains(" "+want+" ", " "+out+" ") {
			t.Errorf("%v: %s, not %s", args, out, want)
		}
	}
	status("204", append(token(one.EnvdAccessToken), at(one.SandboxID)+"/health")...)
	status("204", append(token(one.EnvdAccessToken), at(strings.ToUpper(one.SandboxID))+"/health")...)
	status("204", append(token(one.EnvdAccessToken), "-H", "E2b-Sandbox-Id: "+two.SandboxID, at(one.SandboxID)+"/health")...)
	status("401", append(token(one.EnvdAccessToken), at(two.SandboxID)+"/health")...)
	status("401", append(token(one.EnvdAccessToken), "-H", "E2b-Sandbox-Id: "+one.SandboxID, at(two.SandboxID)+"/health")...)
	status("401", "-H", "X-API-KEY: "+s.key, at(one.SandboxID)+"/health")
	status("404", append(token(one.EnvdAccessToken), at("sandbox")+"/health")...)
	for _, path := range []string{"/v2/box", "/files/../v2/box", "//v2/box", "/init/", "/process.Process/", "/files/compose", "/debug/pprof/", "/%66iles/..%2fv2/box", "/metrics/"} {
		status("400 403 404", append(token(one.EnvdAccessToken), "-H", "X-Box-Api-Key: "+s.key, "--path-as-is", at(one.SandboxID)+path)...)
	}
	for _, path := range []string{"/v2/box", "/sandboxes/../v2/box", "//v2/box", "/v2/sandboxes/../box", "/openapi.json", "/healthz", "/readyz", "/ui/", "/metrics", "/files?signature=x", "/sandboxes/..%2f..%2fv2%2fbox", "/%2e%2e/v2/box"} {
		status("400 401 404", "-H", "X-Box-Api-Key: "+s.key, "-H", "X-API-KEY: "+s.key, "--path-as-is", "https://api."+domain+path)
	}
	status("404 405", append(token(one.EnvdAccessToken), "-I", at(one.SandboxID)+"/files?path=/etc/passwd")...)

	var made struct{ Key, ID string }
	if err := s.Client.Do(t.Context(), "POST", "/v2/api-keys", map[string]any{"name": "reader", "role": "admin"}, &made); err != nil {
		t.Fatal(err)
	}
	var connected struct{ EnvdAccessToken string }
	s.call(&connected, http.StatusOK, "-X", "POST", "-H", "X-API-KEY: "+made.Key, "--json", `{"timeout": 300}`, "https://api."+domain+"/sandboxes/"+one.SandboxID+"/connect")
	stream := func(key, procedure, message, output string) *exec.Cmd {
		t.Helper()
		v4, _ := s.Net.GatewayAddrs()
		cmd := exec.CommandContext(t.Context(), "curl", "-sSN", "--cacert", s.ca, "--connect-to", "::"+v4.String()+":", "-o", output, "-H", "X-Access-Token: "+key,
			"-H", "Content-Type: application/connect+json", "--data-binary", "@"+s.file(frame(message)), at(one.SandboxID)+"/process.Process/"+procedure)
		if err := s.Net.Internet().Start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	writer := stream(one.EnvdAccessToken, "Start", `{"process": {"cmd": "/bin/sh", "args": ["-c", "while :; do echo yes; done"]}, "tag": "flood", "stdin": false}`, "/dev/null")
	s.Until("the command runs", func() bool {
		return strings.Contains(s.curl(append(token(one.EnvdAccessToken), "--json", "{}", at(one.SandboxID)+"/process.Process/List")...), "flood")
	})
	read := filepath.Join(t.TempDir(), "output")
	reader := stream(connected.EnvdAccessToken, "Connect", `{"process": {"tag": "flood"}}`, read)
	ended := make(chan error, 1)
	go func() { ended <- reader.Wait() }()
	s.Until("the key reads", func() bool {
		info, err := os.Stat(read)
		return err == nil && info.Size() > 1<<20
	})
	if err := s.Client.Do(t.Context(), "DELETE", "/v2/api-keys/"+made.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("a revoked key still reads")
	}
	if list := s.curl(append(token(one.EnvdAccessToken), "--json", "{}", at(one.SandboxID)+"/process.Process/List")...); !strings.Contains(list, "flood") {
		t.Errorf("the command of another key has ended: %s", list)
	}
	_ = writer.Process.Kill()
	_ = writer.Wait()
	if err := s.Client.Do(t.Context(), "DELETE", "/v2/box/"+two.SandboxID, nil, nil); err != nil {
		t.Fatal(err)
	}
	status("502", append(token(two.EnvdAccessToken), at(two.SandboxID)+"/health")...)
}
