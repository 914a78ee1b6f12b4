package ssh

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"boxgate/policy/match"
	"boxgate/policy/name"
	sshrule "boxgate/rule/ssh"
)

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseGit(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"git-upload-pack 'a/b.git'", "git-receive-pack '/a/b'", "git-upload-archive 'a/b/c_d-e.git'"} {
		if git, err := parseGit(command); err != nil || git.String() != command {
			t.Errorf("%s: %+v, %v", command, git, err)
		}
	}
	for _, command := range []string{
		"", "git-upload-pack", "git-upload-pack ", "git-upload-pack ''", "git-upload-pack '", "git-upload-pack 'a", "git-upload-pack a'",
		"git-upload-pack  'a'", "git-upload-pack 'a' ", "git-upload-pack 'a'\n", "git-upload-pack 'a b'", "git-upload-pack 'a'\\''b'", "git-upload-pack 'a\x00'",
		"git-upload-pack \"a\"", "GIT-UPLOAD-PACK 'a'", "/usr/bin/git-upload-pack 'a'", "git-upload-pack '$(id)'", "git-upload-pack 'é'",
		"git-lfs-transfer 'a' upload", "git-upload-pack '" + strings.Repeat("a", maxPath) + "'",
	} {
		if git, err := parseGit(command); err == nil {
			t.Errorf("%q is %+v", command, git)
		}
	}
}

// Every command that parseGit accepts is one to a shell as well: one word and one argument, which is the path.
func FuzzParseGit(f *testing.F) {
	for _, seed := range []string{"git-upload-pack 'a/b.git'", "git-receive-pack '/x'; id", "git-upload-pack 'a'\\''b'", "git-upload-archive '~x'", "git-upload-pack '-x'"} {
		f.Add(seed)
	}
	login := &sshrule.Login{Repos: []match.RepoRule{{Name: "a/b", Access: "read"}}}
	host, err := name.Parse("git.example.com")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, command string) {
		git, err := parseGit(command)
		if err != nil {
			return
		}
		if git.String() != command {
			t.Fatalf("%q is sent on as %q", command, git)
		}
		out, err := exec.Command("sh", "-c", "set -- "+command+"; printf '%s|%s|%s' $# \"$1\" \"$2\"").Output()
		if want := "2|" + git.service + "|" + git.path; err != nil || string(out) != want {
			t.Fatalf("a shell reads %q in %q; want %q", out, command, want)
		}
		repo, allowed := login.Repo(host, git.service, git.path)
		named := git.path == "a/b" || git.path == "a/b.git" || git.path == "/a/b" || git.path == "/a/b.git"
		if allowed != (named && git.service != "git-receive-pack") {
			t.Fatalf("%q: %v, by %q", command, allowed, repo)
		}
	})
}
