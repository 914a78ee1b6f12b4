package rootfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzGitIdentity: git reads back the written values, an identity replaces an earlier one, and the rest stays.
func FuzzGitIdentity(f *testing.F) {
	f.Add("Ann", "ann@example.com")
	f.Add(`a "b" \c # d ; [e]`, "\t=x\n[user]\nname = other")
	f.Fuzz(func(t *testing.T, name, email string) {
		if strings.ContainsAny(name+email, "\x00\r\b") || !strings.ContainsFunc(name, func(r rune) bool { return r > ' ' }) {
			return
		}
		config := "[core]\n\tpager = less"
		for _, is := range []GitIdentity{{"Old", "old@example.com"}, {name, email}} {
			config = is.insertInto(config)
		}
		file := filepath.Join(t.TempDir(), "gitconfig")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{"user.name": name, "user.email": email, "core.pager": "less"} {
			out, err := exec.Command("git", "config", "--file", file, "--get-all", "--null", key).Output()
			if err != nil || string(out) != want+"\x00" {
				t.Fatalf("%s is %q, %v; want %q", key, out, err, want)
			}
		}
		if got := (GitIdentity{}).insertInto(config); got != "[core]\n\tpager = less\n" {
			t.Fatalf("without an identity: %q", got)
		}
	})
}
