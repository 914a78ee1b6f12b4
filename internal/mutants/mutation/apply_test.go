package mutation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes files to a folder and returns its sources.
func module(t *testing.T, files map[string]string) *Sources {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return NewSources(root)
}

// mutate applies f to files and returns the text of the only changed file.
func mutate(t *testing.T, s *Sources, files ...File) (string, error) {
	t.Helper()
	texts, err := Mutant{Files: files}.Apply(s)
	if err == nil && len(texts) != 1 {
		t.Fatalf("changes %d files", len(texts))
	}
	for _, text := range texts {
		return string(text), err
	}
	return "", err
}

// wantText compares a mutated text, or an error, with the expected one.
func wantText(t *testing.T, got string, err error, want, wantErr string) {
	t.Helper()
	if wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("got %v, want %q", err, wantErr)
		}
		return
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestApplyLines(t *testing.T) {
	s := module(t, map[string]string{"f": "a\nb\nb\nc\n"})
	for name, c := range map[string]struct {
		blocks    []Block
		want, err string
	}{
		"first line":     {blocks: []Block{{Old: "a\n", New: "z\n"}}, want: "z\nb\nb\nc\n"},
		"last line":      {blocks: []Block{{Old: "c\n"}}, want: "a\nb\nb\n"},
		"several":        {blocks: []Block{{Old: "c\n", New: "d\n"}, {Old: "a\nb\n", New: "e\nf\n"}}, want: "e\nf\nb\nd\n"},
		"neighbours":     {blocks: []Block{{Old: "b\n"}}, err: "more than once"},
		"gone":           {blocks: []Block{{Old: "x\n"}}, err: "no longer has"},
		"part of a line": {blocks: []Block{{Old: "\n"}}, err: "no longer has"},
		"the same twice": {blocks: []Block{{Old: "a\n"}, {Old: "a\n"}}, err: "overlap"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mutate(t, s, File{Path: "f", Blocks: c.blocks})
			wantText(t, got, err, c.want, c.err)
		})
	}
}

const doorSource = `package door

type Door struct {
	Open bool // at night
	bell *Bell
}

var limit, size = 3, 4

func (d *Door) enter(who string, n int) (ok bool) {
	if !d.known(who) { // strangers
		return false
	}
	d.log(who)
	switch {
	case n > limit:
		return false
	case n == 0,
		who == "":
		d.log(who)
	}
	d.bell = &Bell{
		Loud: true,
		Long: d.long(who,
			n),
	}
	return d.known(who) && n <
		limit
}

func enter() { ring() }

func (d pair[K, V]) enter() { d.ring() }
`

func TestApplyToDeclarations(t *testing.T) {
	const (
		enter      = "Door.enter"
		switchText = "switch {\n\tcase n > limit:\n\t\treturn false\n\tcase n == 0,\n\t\twho == \"\":\n\t\td.log(who)\n\t}"
		nested     = "		Long: d.long(who,\n			n),\n"
	)
	s := module(t, map[string]string{"door/door.go": doorSource, "door/door_test.go": "package door\n\nfunc enter() {}\n"})
	for name, c := range map[string]struct {
		decl             string
		old, new         string
		nth              int
		wantOld, wantNew string // the changed part of the text
		err              string
	}{
		"an expression":              {decl: "(*Door).enter", old: "!d.known(who)", new: "false", wantOld: "!d.known(who)", wantNew: "false"},
		"laid out otherwise":         {decl: enter, old: "n<limit", new: "true", wantOld: "n <\n\t\tlimit", wantNew: "true"},
		"with another comment":       {decl: enter, old: "if !d.known(who) {\n// all\nreturn false }", wantOld: "\tif !d.known(who) { // strangers\n\t\treturn false\n\t}\n"},
		"the second":                 {decl: enter, old: "d.log(who)", nth: 2, wantOld: "\t\td.log(who)\n\t}\n", wantNew: "\t}\n"},
		"ambiguous":                  {decl: enter, old: "d.log(who)", err: "occurs 2 times"},
		"too many":                   {decl: enter, old: "d.log(who)", nth: 3, err: "occurs 2 times, not 3"},
		"statements":                 {decl: enter, old: "d.log(who)\nswitch { case n > limit: return false; case n == 0, who == \"\": d.log(who) }", new: "_ = n", wantOld: "d.log(who)\n\tswitch {\n\tcase n > limit:\n\t\treturn false\n\tcase n == 0,\n\t\twho == \"\":\n\t\td.log(who)\n\t}", wantNew: "_ = n"},
		"a case":                     {decl: enter, old: "case n > limit: return false", wantOld: "\tcase n > limit:\n\t\treturn false\n"},
		"a switch":                   {decl: enter, old: switchText, new: "_ = n", wantOld: switchText, wantNew: "_ = n"},
		"an element with its comma":  {decl: enter, old: "Long: d.long(who, n),", wantOld: nested},
		"an element without comma":   {decl: enter, old: "Long: d.long(who, n)", wantOld: nested},
		"elements":                   {decl: enter, old: "Loud: true, Long: d.long(who, n)", new: "nil,", wantOld: "Loud: true,\n\t\tLong: d.long(who,\n\t\t\tn),", wantNew: "nil,"},
		"an argument":                {decl: enter, old: "d.long(who, n)", new: "0", wantOld: "d.long(who,\n\t\t\tn)", wantNew: "0"},
		"a field":                    {decl: "Door", old: "Open bool", new: "Open int", wantOld: "Open bool", wantNew: "Open int"},
		"a variable":                 {decl: "size", old: "3", new: "9", wantOld: "3, 4", wantNew: "9, 4"},
		"a function":                 {decl: "enter", old: "ring()", new: "_ = ring", wantOld: "{ ring() }", wantNew: "{ _ = ring }"},
		"a method of a generic type": {decl: "pair.enter", old: "d.ring()", new: "_ = d", wantOld: "{ d.ring() }", wantNew: "{ _ = d }"},
		"like another":               {decl: enter, old: "!d.known(her)", err: "is not there\n\tit has: !d.known(who)"},
		"in another":                 {decl: enter, old: "ring()", err: "the old text is in enter"},
		"no such declaration":        {decl: "(*Door).leave", old: "d.log(who)", err: "door has no declaration (*Door).leave; the old text is in Door.enter"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.err == "" && !strings.Contains(doorSource, c.wantOld) {
				t.Fatalf("the source does not have %q", c.wantOld)
			}
			want := strings.Replace(doorSource, c.wantOld, c.wantNew, 1)
			got, err := mutate(t, s, File{Path: "door", Decl: c.decl, Blocks: []Block{{Old: c.old, New: c.new, Nth: c.nth}}})
			wantText(t, got, err, want, c.err)
		})
	}
}

func TestApplyToSeveralDeclarationsAndLines(t *testing.T) {
	s := module(t, map[string]string{
		"a.go": "package a\n\nimport \"os\"\n\nfunc f() { x() }\n\nfunc g() { y() }\n",
		"b.go": "package a\n\nfunc h() { f() }\n",
	})
	got, err := mutate(t, s,
		File{Path: ".", Decl: "g", Blocks: []Block{{Old: "y()"}}},
		File{Path: "a.go", Blocks: []Block{{Old: "import \"os\"\n"}}},
		File{Path: "a.go", Decl: "f", Blocks: []Block{{Old: "x()", New: "z()"}}})
	wantText(t, got, err, "package a\n\n\nfunc f() { z() }\n\nfunc g() {  }\n", "")
	_, err = mutate(t, s, File{Path: ".", Decl: "f", Blocks: []Block{{Old: "x()"}}}, File{Path: "a.go", Blocks: []Block{{Old: "func f() { x() }\n"}}})
	wantText(t, "", err, "", "overlap")
}

func TestApplyWantsOneDeclaration(t *testing.T) {
	s := module(t, map[string]string{
		"a/linux.go": "package a\n\nfunc f() { x() }\n",
		"a/other.go": "package a\n\nfunc f() { y() }\n",
	})
	_, err := mutate(t, s, File{Path: "a", Decl: "f", Blocks: []Block{{Old: "x()"}}})
	wantText(t, "", err, "", "declared in a/linux.go and a/other.go")
	got, err := mutate(t, s, File{Path: "a/linux.go", Decl: "f", Blocks: []Block{{Old: "x()", New: "z()"}}})
	wantText(t, got, err, "package a\n\nfunc f() { z() }\n", "")
}

func TestLoadNamesMutantsByFolder(t *testing.T) {
	const text = "Gone.\n\npromise: P\ntest: ./a ^TestA$\n-- a F --\n<<<<\nx\n====\n>>>>\n"
	s := module(t, map[string]string{"a/b/one.txtar": text, "a/two.txtar": text, "a/bad.txtar": "", "a/README": ""})
	mutants, err := Load(s.root)
	if err == nil || !strings.Contains(err.Error(), "bad.txtar: no summary") {
		t.Errorf("error %v", err)
	}
	if len(mutants) != 2 || mutants[0].Name != "a/b/one" || mutants[1].Name != "a/two" {
		t.Errorf("got %v", mutants)
	}
	if got := (Mutant{Files: []File{{Path: "a", Decl: "F"}, {Path: "a/f.go", Decl: "F"}, {Path: "b/c/f.go"}}}).Packages(); len(got) != 2 || got[0] != "a" || got[1] != "b/c" {
		t.Errorf("packages %q", got)
	}
}
