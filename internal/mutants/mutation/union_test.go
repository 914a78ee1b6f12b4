package mutation

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const program = `package main

import "fmt"

var greeting = "hello"

func main() { fmt.Println(greeting, first([]int{3, 4}), second()) }

func first(list []int) int {
loop:
	for _, n := range list {
		switch n {
		case 3:
			continue loop
		}
		return n
	}
	return 0
}

func second() (s string) {
	defer func() { s += "!" }()
	return "end"
}
`

// The mutants of the program, by name.
var programMutants = map[string]string{
	"one":      "-- main.go first --\n<<<<\nn == 3\n====\nfalse\n>>>>\n",
	"label":    "-- main.go first --\n<<<<\ncase 3:\n\tcontinue loop\n====\ncase 4:\n\tcontinue loop\n>>>>\n",
	"result":   "-- main.go second --\n<<<<\n\"end\"\n====\n\"start\"\n>>>>\n",
	"void":     "-- main.go main --\n<<<<\nfmt.Println(greeting, first([]int{3, 4}), second())\n====\nfmt.Println(\"nothing\")\n>>>>\n",
	"unused":   "-- main.go second --\n<<<<\nreturn \"end\"\n====\nx := 1\nreturn \"end\"\n>>>>\n",
	"variable": "-- main.go greeting --\n<<<<\n\"hello\"\n====\n\"bye\"\n>>>>\n",
}

// unite writes the program to a folder and unites the named mutants.
func unite(t *testing.T, names ...string) (root string, u *Union, mutants map[string]Mutant) {
	t.Helper()
	root, mutants = t.TempDir(), map[string]Mutant{}
	for name, text := range map[string]string{"go.mod": "module tiny\n\ngo 1.26\n", "main.go": program} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var list []Mutant
	for _, name := range names {
		m, err := Parse(name, []byte("A mutant.\n\npromise: P\ntest: . ^Test$\n"+programMutants[name]))
		if err != nil {
			t.Fatal(err)
		}
		list, mutants[name] = append(list, m), m
	}
	u, err := NewUnion(root, "tiny", list, nil)
	if err != nil {
		t.Fatal(err)
	}
	return root, u, mutants
}

// build builds the union and returns the program, or the compiler's messages.
func build(t *testing.T, root string, u *Union) (program, messages []byte) {
	t.Helper()
	dir := t.TempDir()
	replace, err := u.Write(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	var overlay []string
	for from, to := range replace {
		overlay = append(overlay, `"`+from+`": "`+to+`"`)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, []byte(`{"Replace": {`+strings.Join(overlay, ", ")+`}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-overlay", path, "-o", filepath.Join(dir, "program"), ".")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if messages, err = cmd.CombinedOutput(); err != nil {
		return nil, messages
	}
	program, err = os.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	return program, nil
}

func output(t *testing.T, program []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestUnionIsTheOriginalAndEachMutant(t *testing.T) {
	root, u, mutants := unite(t, "label", "result", "void")
	whole, messages := build(t, root, u)
	if whole == nil {
		t.Fatalf("the union does not build: %s", messages)
	}
	if got := output(t, whole); got != "hello 4 end!" {
		t.Errorf("the original prints %q", got)
	}
	for name, want := range map[string]string{"label": "hello 3 end!", "result": "hello 4 start!", "void": "nothing"} {
		patched, found, err := u.Patch(whole, mutants[name])
		if err != nil || !found {
			t.Fatalf("%s: found %t, %v", name, found, err)
		}
		if got := output(t, patched); got != want {
			t.Errorf("%s prints %q, want %q", name, got, want)
		}
	}
}

func TestUnionLeavesOutWhatIsNoBody(t *testing.T) {
	_, u, mutants := unite(t, "variable", "result", "one") // one does not apply
	for name, want := range map[string]bool{"variable": false, "result": true, "one": false} {
		if got := u.Has(mutants[name]); got != want {
			t.Errorf("%s is in the union: %t", name, got)
		}
	}
}

func TestTheCompilerNamesTheMutant(t *testing.T) {
	root, u, _ := unite(t, "unused", "result")
	whole, messages := build(t, root, u)
	if got := u.Blamed(messages); whole != nil || len(got) != 1 || got[0] != "unused" {
		t.Errorf("blamed %q for:\n%s", got, messages)
	}
}

func TestProgramWithoutASlot(t *testing.T) {
	_, u, mutants := unite(t, "result")
	if _, found, err := u.Patch([]byte("another program"), mutants["result"]); found || err != nil {
		t.Errorf("found %t, %v", found, err)
	}
	if _, _, err := u.Patch([]byte(emptySlot+emptySlot), mutants["result"]); err == nil {
		t.Error("of two slots one is taken")
	}
}
