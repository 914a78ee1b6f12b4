package secrets

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// canaries are secrets of every kind in use in one world, and the outputs collected from it.
type canaries struct {
	*harness.World
	in      *harness.Intruder
	brokers *brokers
	secrets map[string]string // by kind; must not be seen in any encoding
	keys    map[string]string // of the API and the store: allowed only in their own files
	seen    map[string][]byte
	mark    string // part of all secrets of this run and of no other
	fails   string // while this file exists, the command fails and prints its value
}

// newCanaries starts a gateway at debug level. Its box uses a literal, and secrets of a file, a variable and a command,
// in headers and behind placeholders, on a host that reflects, and all that [brokers] issue and accept.
func newCanaries(t *testing.T) *canaries {
	t.Helper()
	c := &canaries{World: harness.NewStopped(t, lab.Options{}), secrets: map[string]string{}, keys: map[string]string{}, seen: map[string][]byte{}}
	c.mark = rand.Text()[:24]
	for i, kind := range []string{"literal", "file", "env", "cmd", "place"} {
		c.secrets[kind] = fmt.Sprintf("canary-%d-%s-end", i, c.mark)
	}
	c.brokers = newBrokers(c.World, c.mark, c.secrets)
	dir := t.TempDir()
	c.fails = filepath.Join(dir, "fails")
	program := fmt.Sprintf("#!/bin/sh\nif [ -e %s ]; then echo \"login with $(cat %s/cmd) failed\" >&2; exit 1; fi\nexec cat %s/cmd\n", c.fails, dir, dir)
	err := errors.Join(os.WriteFile(dir+"/file", []byte(c.secrets["file"]+"\n"), 0o600), os.WriteFile(dir+"/cmd", []byte(c.secrets["cmd"]+"\n"), 0o600),
		os.WriteFile(dir+"/program", []byte(program), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	c.Env = []string{"E2E_CANARY_OF_ENV=" + c.secrets["env"], "GOTRACEBACK=system", harness.FaultsFile + "=" + c.FaultsPath()}
	addConfig(c.World, "secrets:\n  file: {file: "+dir+"/file}\n  env: {env: E2E_CANARY_OF_ENV}\n  cmd: {command: ["+dir+"/program], refresh: 100ms}\n"+c.brokers.configuration())
	c.StartIfStopped()
	names := []string{"api.example.com", "bad-cert.example.com", "www.example.com", brokerHost, mutualHost, baseHost + ":5432", forge + ":22"}
	box := c.Create(map[string]any{"name": "canary", "network_policy": harness.Custom(names...), "attach_headers": c.rules("")})
	c.in = c.Intrude(box)
	return c
}

// rules returns the box's header rules, with a suffix after each literal.
func (c *canaries) rules(behind string) map[string]any {
	literal := c.secrets["literal"] + behind
	secret := func(name string) map[string]string { return map[string]string{"secret": name} }
	all := map[string]any{
		"bad-cert.example.com": map[string]string{"X-Key": literal},
		"api.example.com": map[string]any{
			"headers":      map[string]any{"X-Key": literal, "X-File": secret("file"), "X-Env": secret("env"), "X-Cmd": secret("cmd")},
			"placeholders": map[string]any{"PLACE": c.secrets["place"] + behind, "FILE": secret("file"), "CMD": secret("cmd")},
			"scrub":        true,
		},
	}
	c.brokers.rules(all)
	return all
}

func (c *canaries) collect(where string, what []byte) { c.seen[where] = append(c.seen[where], what...) }

func (c *canaries) keepRun(args ...string) {
	out, _ := c.GatewayCommand(args...)
	c.collect("gateway "+strings.ReplaceAll(strings.Join(args, " "), "canary-", ""), []byte(out))
}

func (c *canaries) ask(method, path string, body any) {
	var answer json.RawMessage
	err := c.Client.Do(c.T.Context(), method, path, body, &answer)
	c.collect(method+" "+path, append(answer, fmt.Sprint(err)...))
}

// use sends every kind of request, and causes every kind of refusal and fault.
func (c *canaries) use() {
	out := c.MustSh(c.in.Box, `for v in --http2 --http1.1; do
for p in /plain /echo; do curl -sS $v https://api.example.com$p; done
for p in /sse /slow/100000; do curl -sS -m 0.3 $v https://api.example.com$p; done
for t in "$PLACE" "$FILE" "$CMD"; do for p in /reflect /reflect/gzip /reflect/zstd; do curl -sS -D - $v -H "Authorization: Bearer $t" https://api.example.com$p --compressed --raw; done; done
curl -sS $v -u "user:$PLACE" https://api.example.com/echo; curl -sS $v "https://api.example.com/?key=$PLACE"; curl -sS $v -H "User-Agent: $FILE" https://api.example.com/echo
curl -sS $v -H "X-Key: $PLACE" https://bad-cert.example.com/; curl -sS $v https://bad-cert.example.com/
done
curl -sS -X TRACE https://api.example.com/; curl -sS -H 'Host: other' https://api.example.com/; curl -sS http://api.example.com/; curl -sS -H "X-Key: $CMD" http://api.example.com/
curl -sS --http1.1 -H 'Transfer-Encoding: chunked' -H 'Content-Length: 3' -d abc https://api.example.com/; env; set; true`)
	c.collect("the box's output", []byte(out))
	if !strings.Contains(out, strings.Repeat("*", len(c.secrets["place"]))) {
		c.T.Errorf("nothing is reflected: %s", out)
	}
	c.broker()
	c.brokers.requestOtherHost(c.in)
	c.half()
	got := c.in.Requests("api.example.com", "/plain")
	if len(got) != 2 {
		c.T.Fatalf("%d requests arrived", len(got))
	}
	for kind, name := range map[string]string{"literal": "X-Key", "file": "X-File", "env": "X-Env", "cmd": "X-Cmd"} {
		if got[0].Header.Get(name) != c.secrets[kind] {
			c.T.Errorf("%s is not in use: %+v", kind, got[0])
		}
	}
	if got := c.in.Requests("api.example.com", "/reflect"); len(got) != 6 || got[0].Header.Get("Authorization") != "Bearer "+c.secrets["place"] {
		c.T.Errorf("the placeholder is not in use: %+v", got)
	}
}

// broker makes the box use all that the brokers accept.
func (c *canaries) broker() { c.collect("the box's output", []byte(c.brokers.used(c.in))) }

// half sends half a request.
func (c *canaries) half() {
	bad := c.in.TLS(c.in.DialHost("api.example.com", 443), "api.example.com")
	if _, err := io.WriteString(bad, "POST /cut HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 100\r\n\r\nhalf"); err != nil {
		c.T.Fatal(err)
	}
}

// failSources lets a source fail and a request panic.
func (c *canaries) failSources() {
	if err := os.WriteFile(c.fails, nil, 0o600); err != nil {
		c.T.Fatal(err)
	}
	c.collect("what failing sources say", []byte(c.brokers.failSources(c.in)))
	c.Until("the source fails", func() bool {
		c.MustSh(c.in.Box, "curl -sS -o /dev/null https://api.example.com/failing; true")
		return strings.Contains(c.LogText(), "login with [redacted] failed")
	})
	if err := os.Remove(c.fails); err != nil {
		c.T.Fatal(err)
	}
	c.Arm(harness.FaultPanic, "proxy: request read")
	if err := c.in.Fetch(netip.AddrPortFrom(c.in.Resolve("api.example.com", "ip4"), 443), "api.example.com"); err == nil {
		c.T.Error("the request outlived the panic")
	}
	c.MustReachStep("request")
}

// collectOutputs uses the secrets in every way, including with mistakes.
func (c *canaries) collectOutputs() {
	box := c.in.Box
	for _, path := range []string{"/v2/box", api.BoxPath(box), api.BoxPath(box, "config/attach-headers"), "/v2/box/settings/attach-headers",
		api.BoxPath(box, "config/network-policy"), api.BoxPath(box, "logs"), api.BoxPath(box, "runs"), api.BoxPath(box, "status"), "/openapi.json",
		"/v2/secrets", "/v2/egress", api.BoxPath(box, "egress"), "/.well-known/jwks.json", "/healthz", "/readyz"} {
		c.ask("GET", path, nil)
	}
	literal := c.secrets["literal"]
	rules := api.BoxPath(box, "config/attach-headers")
	for _, wrong := range []map[string]any{
		c.rules("\n"), {"*": map[string]string{"X-Key": literal}}, {"api.example.com": literal}, {"not a host": map[string]string{"X-Key": literal}},
		{"api.example.com": map[string]any{"X-Key: " + literal: ""}}, {"api.example.com": map[string]any{"X-Key=" + literal: 1}},
		{"api.example.com": map[string]any{"headers": map[string]any{"X-Key": map[string]string{"secret": literal}}}},
		{"api.example.com": map[string]any{"placeholders": map[string]any{"KEY=" + literal: ""}}},
	} {
		c.ask("PUT", rules, map[string]any{"attach_headers": wrong})
		c.ask("PATCH", rules, map[string]any{"attach_headers": wrong})
		c.ask("POST", "/v2/box", map[string]any{"attach_headers": wrong})
	}
	c.ask("POST", api.BoxPath(box, "egress/explain"), map[string]any{"host": "api.example.com", "port": 443})
	c.ask("PUT", rules, map[string]any{"attach_headers": c.rules("2")})
	for _, args := range [][]string{{"secret", "list"}, {"secret", "list", "--json"}, {"status"}, {"status", "--json"}, {"support", "--json"}, {"headers", "list", "--box", box}, {"headers", "list", "--box", box, "--json"}, {"box", "get", box}, {"box", "list", "--json"},
		{"policy", "get", box}, {"log", "--box", box}, {"check", "--json"}, {"headers", "set", "--box", box, "api.example.com", "--secret", "X-Key=" + literal},
		{"headers", "set", "--box", box, "api.example.com", "X-Key: " + literal}, {"headers", "set", "--box", box, "--header", literal, "api.example.com"}} {
		c.keepRun(args...)
	}
	for _, e := range c.Events(box) {
		c.collect("the decisions", fmt.Appendf(nil, "%+v", e))
	}
	c.collect("metrics", c.Metrics())
}

// rotate changes the keys. The old and the new ones count as secrets.
func (c *canaries) rotate() {
	note := func(when string) {
		c.keys["API key "+when] = strings.TrimSpace(c.KeyFile("api-key"))
		for line := range strings.Lines(c.KeyFile("secret.key")) {
			if strings.HasPrefix(line, "AGE-SECRET-KEY") {
				c.keys["key of the store "+when] = strings.TrimSpace(line)
			}
		}
	}
	note("before")
	c.keepRun("store", "rotate-key")
	c.keepRun("api-key", "rotate")
	note("after")
	client, err := c.Dial()
	if err != nil || len(c.keys) != 4 || c.keys["API key before"] == c.keys["API key after"] {
		c.T.Fatal(err, len(c.keys))
	}
	c.Client = client
	c.collectOutputs()
	c.broker()
}

// dump kills the gateway like a fatal error of the Go runtime, and collects its output.
func (c *canaries) dump(signal unix.Signal) {
	c.half()
	c.Until("a request is under way", func() bool { return len(c.in.Requests("api.example.com", "/cut")) > 0 })
	if err := c.Process.Process.Signal(signal); err != nil {
		c.T.Fatal(err)
	}
	c.AwaitExit(signal.String())
	if text := c.LogText(); !strings.Contains(text, unix.SignalName(signal)) || strings.Count(text, "\ngoroutine ") < 10 {
		c.T.Errorf("%v: there is no dump", signal)
	} else if !strings.Contains(text, ".Tgkill(") {
		c.T.Errorf("%v: the registers in the dump may be those of a thread that works with secrets", signal)
	}
}

// TestAttackCanaryIsSeenNowhere uses secrets of every kind in every way at debug level, changes the keys, makes sources
// and requests fail, makes the gateway dump its state, and then searches for the secrets everywhere.
func TestAttackCanaryIsSeenNowhere(t *testing.T) {
	t.Parallel()
	c := newCanaries(t)
	c.use()
	c.collectOutputs()
	c.failSources()
	c.rotate()
	c.brokers.issuedSecrets(c.secrets)
	c.inMemory()
	// One search, because it is slow, for the common part of most secrets and for the rest.
	line := lab.SearchLine(c.mark, c.secrets["the SSH key's text"], c.secrets["the certificate's text"], c.secrets["forwarding token 0"])
	if found := strings.Fields(harness.Output(c.Sh(c.in.Box, line))); strings.Join(found, " ") != "0 0 0" {
		t.Errorf("matches of a secret in environment, /proc and files of the box: %v", found)
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", c.Process.Process.Pid))
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), "Max core file size 0 0") {
		t.Errorf("the gateway may dump core: %v %s", err, limits)
	}
	c.snapshot()
	c.inProcesses()
	c.dump(unix.SIGQUIT)
	c.StartIfStopped()
	c.in = c.Intrude(c.in.Box)
	c.broker()
	c.dump(unix.SIGABRT)
	c.brokers.issuedSecrets(c.secrets)
	c.search()
}

// snapshotMark is in a file of the box, and so in the files of its snapshots.
const snapshotMark = "no secret, but found in snapshots"

// snapshot takes a snapshot of the box, and one of a box from it.
func (c *canaries) snapshot() {
	c.T.Helper()
	c.MustSh(c.in.Box, "echo '"+snapshotMark+"' >mark; env >environment; cat /proc/*/environ >environments 2>/dev/null; true")
	box := c.in.Box
	for range 2 {
		var s, made struct{ ID, Status string }
		err := c.Client.Do(c.T.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{"name": "canary"}, &s)
		if err == nil {
			err = c.Client.Do(c.T.Context(), "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": s.ID, "attach_headers": c.rules("")}, &made)
		}
		if err != nil {
			c.T.Fatal(err)
		}
		box = made.ID
		c.MustSh(box, "env >>environment")
	}
	if fileWith(c.T, filepath.Join(c.Dir, "state", "layers"), []byte(snapshotMark)) == "" {
		c.T.Error("the search finds nothing in snapshots")
	}
}

// inMemory searches the memory of a program in the box that has made every request and keeps the answers, and of the
// box's other processes.
func (c *canaries) inMemory() {
	t := c.T
	const mark = "accepted" // in the servers' answers
	var out lab.SyncBuffer
	c.Background(c.in.Box, `python3 -uc 'import os, time, urllib.request as u
def get(url):
    try: return u.urlopen(url).read()
    except Exception as e: return repr(e)
kept = [get("https://`+brokerHost+`" + p) for p in "`+strings.Join(brokerPaths, " ")+`".split()] + [get("https://`+mutualHost+`/"), dict(os.environ)]
kept.append(u.urlopen(u.Request("https://api.example.com/reflect", headers={"Authorization": "Bearer " + os.environ["PLACE"]})).read())
print("done", flush=True)
time.sleep(3600)'`, &out)
	c.Until("the program has asked", func() bool { return strings.Contains(out.String(), "done") || strings.Contains(out.String(), "Error") })
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.InitOf(c.in.Box)))
	if err != nil || strings.Contains(out.String(), "Error") {
		t.Fatal(err, out.String())
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	searched := false
	for _, dir := range dirs {
		if of, err := os.Readlink(dir + "/ns/pid"); err != nil || of != space {
			continue
		}
		memory := memoryOf(dir)
		searched = searched || bytes.Contains(memory, []byte(mark))
		for kind, secret := range c.secrets {
			if bytes.Contains(memory, []byte(secret)) {
				t.Errorf("the memory of a process in the box holds the secret (%s)", kind)
			}
		}
	}
	if !searched {
		t.Error("the search finds nothing in the memory of the box's processes")
	}
}

// memoryOf returns the readable parts of a process's writable memory.
func memoryOf(dir string) (all []byte) {
	maps, _ := os.ReadFile(dir + "/maps")
	memory, err := os.Open(dir + "/mem")
	if err != nil {
		return nil
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var rights string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); n == 3 && strings.HasPrefix(rights, "rw") {
			part, _ := io.ReadAll(io.NewSectionReader(memory, from, to-from))
			all = append(all, part...)
		}
	}
	return all
}

// inProcesses searches the command line and environment of every process. The gateway's environment has the variable it
// was started with.
func (c *canaries) inProcesses() {
	for pid, what := range processes(c.T) {
		for kind, secret := range c.secrets {
			own := kind == "env" && pid == fmt.Sprint(c.Process.Process.Pid)
			if bytes.Contains(what, []byte(secret)) && pid != fmt.Sprint(os.Getpid()) && !own {
				c.T.Errorf("the command line or environment of process %s holds the secret (%s)", pid, kind)
			}
		}
	}
}

// search searches everything collected and written for secrets. As a control, it must find a non-secret there.
func (c *canaries) search() {
	t := c.T
	roots := []string{filepath.Join(c.Dir, "state"), lab.RunDir(c.Dir), c.Log.Name(), c.Config}
	for _, i := range []int{0, 2} {
		if fileWith(t, roots[i], []byte("bad-cert.example.com")) == "" {
			t.Errorf("the search finds nothing in %s", roots[i])
		}
	}
	wanted := map[string][]byte{}
	for kind, secret := range c.secrets {
		for form, want := range forms(secret) {
			wanted[kind+", "+form] = want
		}
	}
	for kind, want := range wanted {
		for where, what := range c.seen {
			if i := bytes.Index(what, want); i >= 0 {
				t.Errorf("%s shows the secret (%s): …%.300s", where, kind, what[max(0, i-150):])
			}
		}
	}
	for _, root := range roots {
		for kind, file := range filesWith(t, root, wanted) {
			t.Errorf("%s holds the secret (%s)", file, kind)
		}
	}
	log := c.LogText()
	for kind, secret := range c.secrets { // as a dump shows the contents of registers and stacks
		for at := range len(secret) - 7 {
			if word := fmt.Sprintf("%x", binary.LittleEndian.Uint64([]byte(secret[at:]))); strings.Contains(log, word) {
				t.Errorf("the log shows a word of the secret (%s)", kind)
			}
		}
	}
	for kind, key := range c.keys {
		for where, what := range c.seen {
			if bytes.Contains(what, []byte(key)) {
				t.Errorf("%s shows the %s", where, kind)
			}
		}
		if strings.Contains(log, key) || key == "" {
			t.Errorf("the log shows the %s", kind)
		}
	}
	for _, r := range c.Net.Received("", testnet.Of(testnet.Request)) {
		for kind, secret := range c.secrets {
			if r.SNI != "api.example.com" && strings.Contains(fmt.Sprint(r), secret) {
				t.Errorf("a secret (%s) went to %+v", kind, r)
			}
		}
	}
}
