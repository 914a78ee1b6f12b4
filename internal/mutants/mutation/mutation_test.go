package mutation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const head = `Nobody asks
who comes.

promise: Only members (see "rules") pass
promise: Another
test: ./door ^TestStranger$
test: . ^FuzzA|TestB$
`

func TestParse(t *testing.T) {
	got, err := Parse("door", []byte(head+`-- door/door.go --
<<<<
	ask()
====
	_ = ask
>>>>

<<<<
	close()
====
>>>>
-- door/bell.go --
<<<<
ring
====
silence
>>>>
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Mutant{
		Name:     "door",
		Summary:  "Nobody asks who comes.",
		Promises: []string{`Only members (see "rules") pass`, "Another"},
		Tests:    []Test{{"./door", "^TestStranger$"}, {".", "^FuzzA|TestB$"}},
		Files: []File{
			{"door/door.go", []Block{{"\task()\n", "\t_ = ask\n"}, {"\tclose()\n", ""}}},
			{"door/bell.go", []Block{{"ring\n", "silence\n"}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseErrors(t *testing.T) {
	const (
		ok    = "Gone.\n\npromise: P\ntest: ./a ^TestA$\n"
		block = "-- a/a.go --\n<<<<\nx\n====\n>>>>\n"
	)
	for name, c := range map[string]struct{ text, want string }{
		"empty":              {"", "no summary"},
		"no promise":         {"Gone.\n\ntest: ./a ^TestA$\n" + block, "no promise: line"},
		"no test":            {"Gone.\n\npromise: P\n" + block, "no test: line"},
		"no file":            {ok, "no file to mutate"},
		"unknown key":        {"Gone.\n\npromises: P\n" + block, "unexpected line"},
		"empty promise":      {"Gone.\n\npromise:\n" + block, "unexpected line"},
		"test without name":  {"Gone.\n\ntest: ./a\n" + block, "want PACKAGE ^TestName$"},
		"import path":        {"Gone.\n\ntest: a ^TestA$\n" + block, "write the package as ./a"},
		"open name":          {"Gone.\n\ntest: ./a TestA\n" + block, "anchor the name"},
		"bad regexp":         {"Gone.\n\ntest: ./a ^Test($\n" + block, "missing closing"},
		"outside the module": {ok + "-- ../a.go --\n<<<<\nx\n====\n>>>>\n", "not a path inside the module"},
		"no block":           {ok + "-- a/a.go --\n", "no <<<< block"},
		"text outside":       {ok + "-- a/a.go --\nx\n", "outside a block"},
		"no old lines":       {ok + "-- a/a.go --\n<<<<\n====\nx\n>>>>\n", "no old lines"},
		"no change":          {ok + "-- a/a.go --\n<<<<\nx\n====\nx\n>>>>\n", "changes nothing"},
		"no new part":        {ok + "-- a/a.go --\n<<<<\nx\n>>>>\n", "misplaced >>>>"},
		"nested":             {ok + "-- a/a.go --\n<<<<\n<<<<\n", "misplaced <<<<"},
		"unfinished":         {ok + "-- a/a.go --\n<<<<\nx\n====\n", "does not end with >>>>"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("m", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestApply(t *testing.T) {
	const src = "a\nb\nb\nc\n"
	for name, c := range map[string]struct {
		blocks    []Block
		want, err string
	}{
		"first line":         {blocks: []Block{{"a\n", "z\n"}}, want: "z\nb\nb\nc\n"},
		"last line":          {blocks: []Block{{"c\n", ""}}, want: "a\nb\nb\n"},
		"several":            {blocks: []Block{{"c\n", "d\n"}, {"a\nb\n", "e\nf\n"}}, want: "e\nf\nb\nd\n"},
		"neighbours":         {blocks: []Block{{"b\n", ""}}, err: "more than once"},
		"gone":               {blocks: []Block{{"x\n", ""}}, err: "no longer has"},
		"part of a line":     {blocks: []Block{{"\n", ""}}, err: "no longer has"},
		"second after first": {blocks: []Block{{"a\n", ""}, {"a\n", ""}}, err: "no longer has"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := File{Path: "f", Blocks: c.blocks}.Apply([]byte(src))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil || string(got) != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestMatchesChoosesTopLevelTests(t *testing.T) {
	test := Test{Run: "^TestA$/^sub$"}
	if !test.Matches("TestA") || test.Matches("TestAB") || test.Matches("sub") {
		t.Error("wrong choice of tests")
	}
}
