package keys

import (
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

const goodSSHKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBNXzuTZOjOeDXP13WLLxXD+iAxRlhTVtM4/ShdJi1CQ ada@laptop"

// TestSSHKeysOfBodies: one public key without options is accepted, and the error says what else the text is.
func TestSSHKeysOfBodies(t *testing.T) {
	t.Parallel()
	if _, comment, wrong := parseSSHKey(goodSSHKey + "\n"); wrong != "" || comment != "ada@laptop" {
		t.Errorf("%q, %s", comment, wrong)
	}
	for text, want := range map[string]string{
		"":                                "one line",
		"x":                               "one line",
		goodSSHKey + "\n" + goodSSHKey:    "one line",
		goodSSHKey + "\r\n# more":         "one line",
		`from="10.0.0.1" ` + goodSSHKey:   "options",
		`command="/bin/x" ` + goodSSHKey:  "options",
		strings.Repeat("x", maxSSHKey+1):  "one line",
		"-----BEGIN OPENSSH PRIVATE KEY-": "private key",
		"ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7tyEIrd8Rjkq8vqOWUDnTuJsx6fKnXnNq7dTGxXxPz1dP1rUiGCSHMnXZxZJZEGPlxKyGDfF7iDkDyWEdyf8iY+c8eQc2nOTNJDMrMmTVa8VnJtHh7BvSXTlb5b2uKKV3SQO7vxq4lvlrxQ0bYyjAzX2PrpTzUm/OQqNqHdY6hQ==": "2048 bits",
	} {
		if _, _, wrong := parseSSHKey(text); !strings.Contains(wrong, want) {
			t.Errorf("%.60q: %q, not %q", text, wrong, want)
		}
	}
}

// FuzzParseSSHKey: an accepted key is one that its own form is read as again.
func FuzzParseSSHKey(f *testing.F) {
	for _, seed := range []string{goodSSHKey, "", "no-pty " + goodSSHKey, goodSSHKey + "\n\n", "ssh-dss AAAA", "ecdsa-sha2-nistp256 AAAA x", "# comment"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		public, _, wrong := parseSSHKey(line)
		if wrong != "" {
			return
		}
		key, err := ssh.ParsePublicKey(public)
		if err != nil || string(key.Marshal()) != string(public) || weakness(key) != "" || strings.Contains(key.Type(), "cert") {
			t.Errorf("%q: %v", line, err)
		}
	})
}
