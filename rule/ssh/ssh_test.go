package ssh_test

import (
	"errors"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
	"boxgate/rule"
	"boxgate/rule/ssh"
)

const (
	hostKey  = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
	otherKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g"
)

// login is the entry of a login with more members, each after a comma.
func login(more string) string {
	return `{"ssh": {"user": "git", "key": {"secret": "forge-key"}, "host_keys": ["` + hostKey + `"]` + more + `}}`
}

func ruleOf(t testing.TB, entry string) *policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(`{"git.test:22": `+entry+`}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	return &rules[0]
}

func loginOf(t testing.TB, entry string) *ssh.Login {
	t.Helper()
	l, ok := ruleOf(t, entry).OnConnections().Login.(*ssh.Login)
	if !ok {
		t.Fatalf("%s is no login", entry)
	}
	return l
}

// TestAttackWhatALoginAllows: a limited login allows its commands, exactly, and the services of git on its repositories, and nothing else.
func TestAttackWhatALoginAllows(t *testing.T) {
	t.Parallel()
	host, err := name.Parse("git.test")
	if err != nil {
		t.Fatal(err)
	}
	l := loginOf(t, login(`, "repos": [{"name": "o/mine", "access": "push"}, {"name": "o/lib", "access": "read"}], "commands": ["uptime -p"]`))
	for _, tt := range []struct {
		service, path, repo string
		allowed             bool
	}{
		{"git-receive-pack", "o/mine", "push git.test/o/mine", true}, {"git-receive-pack", "/o/mine.git", "push git.test/o/mine", true},
		{"git-upload-pack", "o/mine", "push git.test/o/mine", true}, {"git-upload-archive", "o/lib", "read git.test/o/lib", true},
		{"git-receive-pack", "o/lib", "read git.test/o/lib", false}, {"git-upload-pack", "o/other", "", false},
		{"git-upload-pack", "o/mine/../other", "", false}, {"git-shell", "o/mine", "", false}, {"", "o/mine", "", false},
	} {
		if repo, allowed := l.Repo(host, tt.service, tt.path); repo != tt.repo || allowed != tt.allowed {
			t.Errorf("%s %s: %q, %v", tt.service, tt.path, repo, allowed)
		}
	}
	for command, allowed := range map[string]bool{"uptime -p": true, "uptime": false, "uptime -p ": false, "uptime -p; id": false, "": false} {
		if l.Command(command) != allowed {
			t.Errorf("the command %q", command)
		}
	}
	if !l.Limited() || loginOf(t, login("")).Limited() {
		t.Error("Limited")
	}
}

// TestWhatChangesALogin: a connection that one login began goes on under another that is the same in all, and under no other.
func TestWhatChangesALogin(t *testing.T) {
	t.Parallel()
	first := ruleOf(t, login(""))
	if l := loginOf(t, login("")); l.URL("git.test:22") != "ssh://git@git.test:22" || rule.LoginSource(l) != "forge-key" || !first.SendsAlike(ruleOf(t, login(""))) {
		t.Errorf("%+v", l)
	}
	for _, entry := range []string{
		strings.Replace(login(""), `"git"`, `"root"`, 1), strings.Replace(login(""), "forge-key", "other-key", 1), strings.Replace(login(""), hostKey, otherKey, 1),
		strings.Replace(login(""), hostKey, "@cert-authority "+hostKey, 1), login(`, "commands": ["uptime"]`), login(`, "repos": [{"name": "o/r", "access": "read"}]`), `{}`,
	} {
		if first.SendsAlike(ruleOf(t, entry)) {
			t.Errorf("%s is the same login", entry)
		}
	}
}

// TestMistakes: each is named at its place. What may be the private key itself is not shown.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ host, entry, at, says string }{
		{"git.test:22", `{"ssh": 1}`, "/ssh", "want an object of user, key and host_keys"},
		{"git.test:22", `{"ssh": {"key": {"secret": "s"}, "host_keys": ["` + hostKey + `"]}}`, "/ssh/user", "is missing"},
		{"git.test:22", `{"ssh": {"user": "git", "host_keys": ["` + hostKey + `"]}}`, "/ssh/key", "is missing"},
		{"git.test:22", `{"ssh": {"user": "git", "key": {"secret": "s"}}}`, "/ssh/host_keys", "a server is trusted by its key alone"},
		{"git.test:22", `{"ssh": {"user": "git", "key": {"secret": "s"}, "host_keys": []}}`, "/ssh/host_keys", "a server is trusted by its key alone"},
		{"git.test:22", strings.Replace(login(""), `{"secret": "forge-key"}`, `"-----BEGIN canary"`, 1), "/ssh/key", "stands in the gateway's configuration alone"},
		{"git.test:22", strings.Replace(login(""), `{"secret": "forge-key"}`, `{}`, 1), "/ssh/key", "stands in the gateway's configuration alone"},
		{"git.test:22", strings.Replace(login(""), `"git"`, `"a b"`, 1), "/ssh/user", "1 to 64 characters without spaces"},
		{"git.test:22", strings.Replace(login(""), hostKey, "git.test "+hostKey, 1), "/ssh/host_keys/0", "begins with the name of a host"},
		{"git.test:22", strings.Replace(login(""), hostKey, hostKey[:40], 1), "/ssh/host_keys/0", "cut short or not of its type"},
		{"git.test:22", strings.Replace(login(""), hostKey, "ssh-dss AAAA", 1), "/ssh/host_keys/0", "is no type of a host's key"},
		{"git.test:22", login(`, "repos": []`), "/ssh/repos", "leave it out to allow all"},
		{"git.test:22", login(`, "repos": [{"name": "o/../r", "access": "read"}]`), "/ssh/repos/0/name", ""},
		{"git.test:22", login(`, "repos": [{"name": "o/r", "access": "write"}]`), "/ssh/repos/0/access", ""},
		{"git.test:22", login(`, "commands": []`), "/ssh/commands", "leave it out to allow all"},
		{"git.test:22", login(`, "commands": ["a\u0007"]`), "/ssh/commands/0", "has a control character"},
		{"git.test", login(""), "", `as in "git.test:22"`},
		{"*.git.test:22", login(""), "", "is a wildcard"},
		{"git.test:80", login(""), "", "has a port of HTTP or DNS"},
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"`+tt.host+`": `+tt.entry+`}`), nil)
		var invalid *document.InvalidError
		if !errors.As(err, &invalid) || len(invalid.Problems) != 1 || invalid.Problems[0].Pointer != "/"+tt.host+tt.at || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %s: %v", tt.host, tt.entry, err)
		}
	}
}
