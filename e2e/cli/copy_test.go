package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestCopy copies files and directories into a box and out of it.
func TestCopy(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{"name": "cp", "network_policy": map[string]any{"mode": "deny-all"}})
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{"tree/sub/tool": "#!/bin/sh\necho ran\n", "tree/a": "a", "one": "one", "with:colon": "colon"} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", at("tree/link")); err != nil {
		t.Fatal(err)
	}
	w.Run(0, nil, "", "box", "cp", at("one"), "cp:copied/one.txt")
	w.Run(0, nil, "", "box", "cp", at("one"), "cp:copied")
	w.Run(0, nil, "", "box", "cp", at("with:colon"), "cp:")
	harness.Contains(t, w.Run(0, nil, "", "box", "cp", "--json", "-r", at("tree"), "cp:/tmp/tree"), `{"path":"/tmp/tree","bytes":20}`)
	if got := w.MustSh("cp", "cat copied/one.txt copied/one with:colon; /tmp/tree/sub/tool; readlink /tmp/tree/link"); got != "oneonecolonran\na\n" {
		t.Errorf("the box has %q", got)
	}
	w.MustSh("cp", "ln -s /etc back-door; mkfifo /tmp/tree/pipe")
	harness.Contains(t, w.Run(1, nil, "", "box", "cp", "-r", "cp:/tmp/tree", at("back")), "not copied: 1 file of the box")
	w.Run(0, nil, "", "box", "cp", "cp:copied/one.txt", dir)
	harness.Contains(t, w.Run(0, nil, "", "box", "cp", "--json", "cp:/tmp/tree/link", at("two")), `"bytes":1}`)
	for name, want := range map[string]string{"back/sub/tool": "#!/bin/sh\necho ran\n", "back/link": "a", "one.txt": "one", "two": "a"} {
		if data, err := os.ReadFile(at(name)); string(data) != want || err != nil {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if fi, err := os.Stat(at("back/sub/tool")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	for args, want := range map[string]string{
		"2 cp:tree elsewhere:tree":        "one of the two must be BOX:PATH",
		"2 " + at("tree") + " cp:x":       "copy it with -r",
		"2 cp:/tmp/tree " + at("x"):       "copy it with -r",
		"2 -r cp:copied/one " + at("x"):   "copy it without -r",
		"1 cp:/nowhere " + at("x"):        "in box cp: /nowhere: no such file",
		"1 cp:nowhere " + at("x"):         "no such file",
		"1 " + at("one") + " cp:/etc/one": "in box cp: /etc/one: permission denied",
	} {
		status, line, _ := strings.Cut(args, " ")
		harness.Contains(t, w.Run(int(status[0]-'0'), nil, "", append([]string{"box", "cp"}, strings.Fields(line)...)...), want)
	}
	if _, err := os.Stat(at("x")); err == nil {
		t.Error("a refused copy left a file")
	}
}
