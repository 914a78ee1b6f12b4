package enclosure

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"boxgate/internal/testnet"
)

// TestRunSetsHeadersThatTheCommandDoesNotSee: values come from a file and a variable and reach the server. They are
// neither in the files nor in the environment of the command.
func TestRunSetsHeadersThatTheCommandDoesNotSee(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const fileSecret, envSecret = "sk-from-a-file", "sk-from-a-variable"
	key := filepath.Join(w.home(), "key")
	rules := filepath.Join(w.home(), "rules.json")
	for path, content := range map[string]string{
		key:   "Bearer " + fileSecret + "\n",
		rules: `{"api.example.com": {"Authorization": "@` + key + `", "X-Literal": "sk-in-the-rules"}, "www.example.com": {"headers": {"X-Key": "env:THE_KEY"}}}`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := w.command("--policy", `{"mode":"custom","allowed_domains":["*.example.com"]}`, "--headers", "@"+rules, "--", "sh", "-c",
		"curl -sS https://api.example.com/ https://www.example.com/ >/dev/null; env; cat key rules.json; cat /proc/*/environ; ls -lR /run; cat /proc/1/cmdline")
	cmd.Env = append(cmd.Env, "THE_KEY="+envSecret)
	r := w.finish(cmd)
	for _, secret := range []string{fileSecret, envSecret, "sk-in-the-rules"} {
		if strings.Contains(r.out+r.errout, secret) {
			t.Errorf("the command has %s:\n%s%s", secret, r.out, r.errout)
		}
	}
	for host, header := range map[string][2]string{
		"api.example.com": {"Authorization", "Bearer " + fileSecret}, "www.example.com": {"X-Key", envSecret},
	} {
		got, err := w.Net.Await(t.Context(), host, 1, testnet.Of(testnet.Request))
		if err != nil {
			t.Fatalf("%s got no request: %v\n%s%s", host, err, r.out, r.errout)
		}
		if value := got[0].Header.Get(header[0]); value != header[1] {
			t.Errorf("%s got %s: %q", host, header[0], value)
		}
	}
}

// TestRunGivesPlaceholders: the command's variable contains a token, and the server gets the value.
func TestRunGivesPlaceholders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cmd := w.command("--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`,
		"--headers", `{"api.example.com": {"placeholders": {"API_TOKEN": "env:API_TOKEN"}}}`,
		"--", "sh", "-c", `echo "token=$API_TOKEN"; curl -sS -H "Authorization: Bearer $API_TOKEN" https://api.example.com/ >/dev/null`)
	cmd.Env = append(cmd.Env, "API_TOKEN=the-real-token-of-the-caller")
	r := w.finish(cmd)
	if strings.Contains(r.out, "the-real-token") || strings.Contains(r.out, "token=\n") {
		t.Errorf("the command's variable: %s", r.out)
	}
	got, err := w.Net.Await(t.Context(), "api.example.com", 1, testnet.Of(testnet.Request))
	if err != nil {
		t.Fatalf("%v\n%s%s", err, r.out, r.errout)
	}
	if value := got[0].Header.Get("Authorization"); value != "Bearer the-real-token-of-the-caller" {
		t.Errorf("the server got %q\n%s", value, r.errout)
	}
}

// TestAttackRunReadsWhereValuesCameFrom: a policy file with header values is hidden, and a policy read from standard
// input cannot be read again.
func TestAttackRunReadsWhereValuesCameFrom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "sk-of-the-caller"
	for name, content := range map[string]string{
		"vercel.json": `{"allow": {"api.example.com": [{"transform": [{"headers": {"Authorization": "` + secret + `"}}]}]}}`,
		"e2b.json":    `{"allowOut": ["api.example.com"], "denyOut": ["0.0.0.0/0"], "rules": {"api.example.com": [{"transform": {"headers": {"Authorization": "` + secret + `"}}}]}}`,
		"rules.json":  `{"api.example.com": {"Authorization": "` + secret + `"}}`,
	} {
		flag := "--policy"
		if name == "rules.json" {
			flag = "--headers"
		}
		path := filepath.Join(w.home(), name)
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if name != "rules.json" {
			r := w.run(flag, "@"+name, "-q", "--", "sh", "-c", "cat "+name+"; echo done")
			if !strings.Contains(r.out, "done") || strings.Contains(r.out, secret) {
				t.Errorf("%s, named: exit %d\n%s%s", name, r.status, r.out, r.errout)
			}
		}
		stdin, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		cmd := w.command(flag, "-", "-q", "--", "/usr/bin/python3", "-c",
			"import os; print('read', os.read(0, 9999)); os.lseek(0, 0, 0); print('again', os.read(0, 9999))")
		cmd.Stdin = stdin
		r := w.finish(cmd)
		_ = stdin.Close()
		if !strings.Contains(r.out, "read b''") || strings.Contains(r.out, secret) {
			t.Errorf("%s, as standard input: exit %d\n%s%s", name, r.status, r.out, r.errout)
		}
	}
	cmd := w.command("-q", "--", "cat")
	cmd.Stdin = strings.NewReader("for the command")
	if r := w.finish(cmd); r.out != "for the command" {
		t.Errorf("standard input that is the command's: exit %d\n%s%s", r.status, r.out, r.errout)
	}
}

// TestAttackRunReadsAValueByAnotherName: the file of a value is visible under other mounts, or has another name.
func TestAttackRunReadsAValueByAnotherName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret = "sk-of-the-caller"
	in := func(path string) string { return filepath.Join(w.home(), path) }
	err := errors.Join(os.MkdirAll(in("deep/keys"), 0o777), os.WriteFile(in("deep/keys/key"), []byte(secret), 0o644),
		os.Chown(in("deep"), 47110, 47110), os.Chown(in("deep/keys"), 47110, 47110),
		os.Mkdir(in("whole"), 0o755), os.Mkdir(in("part"), 0o755), os.WriteFile(in("file"), nil, 0o644), os.Symlink("part/key", in("link")))
	for _, m := range [][2]string{{"deep", "whole"}, {"deep/keys", "part"}, {"deep/keys/key", "file"}} {
		err = errors.Join(err, syscall.Mount(in(m[0]), in(m[1]), "", syscall.MS_BIND, ""))
		t.Cleanup(func() { _ = syscall.Unmount(in(m[1]), syscall.MNT_DETACH) })
	}
	if err != nil {
		t.Fatal(err)
	}
	names := "deep/keys/key whole/keys/key part/key file link"
	plain := exec.CommandContext(t.Context(), "sh", "-c", "cat "+names)
	plain.Dir = w.home()
	if r := w.finish(plain); strings.Count(r.out, secret) != 5 {
		t.Fatalf("without the gateway: exit %d\n%s%s", r.status, r.out, r.errout)
	}
	rules := []string{"-q", "--headers", `{"api.example.com": {"Authorization": "@whole/keys/key"}}`, "--"}
	r := w.run(append(rules, "sh", "-c", "cat "+names+"; ln deep/keys/key other; cat other; "+
		"unshare -rm sh -c 'mkdir m u w; umount deep/keys/key; mount --bind deep/keys m; cat m/key; mount -t overlay -o userxattr,lowerdir=deep/keys,upperdir=u,workdir=w x m; cat m/key deep/keys/key'; mv deep moved; cat moved/keys/key; cat whole/keys/*; echo done")...)
	if !strings.Contains(r.out, "done") || strings.Contains(r.out, secret) {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
	dir := in("deep")
	if _, err := os.Stat(dir); err != nil {
		dir = in("moved")
	}
	if err := os.Link(filepath.Join(dir, "keys/key"), in("hard")); err != nil {
		t.Fatal(err)
	}
	if r := w.run(append(rules, "cat", "hard")...); r.status == 0 || strings.Contains(r.out, secret) || !strings.Contains(r.errout, "2 names") {
		t.Errorf("with a hard link: exit %d\n%s%s", r.status, r.out, r.errout)
	}
}

// TestAttackRunReadsAConfiguredSecret: a command run as root can read neither the file of a secret that a rule names,
// nor the configuration, which may contain a secret.
func TestAttackRunReadsAConfiguredSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, state := filepath.Join(w.Dir, "the-key"), ""
	text, err := os.ReadFile(w.Config)
	for line := range strings.Lines(string(text)) {
		if dir, ok := strings.CutPrefix(line, "state_dir: "); ok {
			state = strings.Trim(strings.TrimSpace(dir), "\"'")
		}
	}
	err = errors.Join(err, os.WriteFile(file, []byte("sk-in-a-file"), 0o600), os.MkdirAll(state, 0o700), os.WriteFile(filepath.Join(state, "kept"), []byte("sk-in-the-state"), 0o600),
		os.WriteFile(w.Config, append(text, "\nsecrets:\n  in-a-file: {file: "+file+"}\n  as-it-is: {value: sk-in-the-configuration}\n"...), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.command("--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`, "--headers", `{"api.example.com": {"headers": {"X-A": {"secret": "in-a-file"}, "X-B": {"secret": "as-it-is"}}}}`,
		"--", "sh", "-c", "cat "+file+" "+w.Config+" "+state+"/*; curl -sS https://api.example.com/ >/dev/null && echo reached")
	cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "SUDO_") })
	r := w.finish(cmd)
	if strings.Contains(r.out, "sk-in-") || !strings.Contains(r.out, "reached") {
		t.Errorf("exit %d\n%s%s", r.status, r.out, r.errout)
	}
	got, err := w.Net.Await(t.Context(), "api.example.com", 1, testnet.Of(testnet.Request))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got[0].Header.Get("X-A"), got[0].Header.Get("X-B"); a != "sk-in-a-file" || b != "sk-in-the-configuration" {
		t.Errorf("the server got %q and %q", a, b)
	}
}
