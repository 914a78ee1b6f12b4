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
-- door (*Door).open --
<<<< 2
ask()
====
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
			{Path: "door/door.go", Blocks: []Block{{Old: "\task()\n", New: "\t_ = ask\n"}, {Old: "\tclose()\n"}}},
			{Path: "door/bell.go", Blocks: []Block{{Old: "ring\n", New: "silence\n"}}},
			{Path: "door", Decl: "(*Door).open", Blocks: []Block{{Old: "ask()\n", Nth: 2}}},
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
		"no file":            {ok, "no mutation"},
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
		"no change":          {ok + "-- a/a.go --\n<<<<\nx\n====\nx\n>>>>\n", "makes no change"},
		"no new part":        {ok + "-- a/a.go --\n<<<<\nx\n>>>>\n", "misplaced >>>>"},
		"nested":             {ok + "-- a/a.go --\n<<<<\n<<<<\n", "misplaced <<<<"},
		"counted lines":      {ok + "-- a/a.go --\n<<<< 2\nx\n====\n>>>>\n", "only blocks of a declaration"},
		"counted from 0":     {ok + "-- a F --\n<<<< 0\nx\n====\n>>>>\n", "outside a block"},
		"no Go":              {ok + "-- a F --\n<<<<\nif x {\n====\n>>>>\n", "neither an expression nor"},
		"unbalanced Go":      {ok + "-- a F --\n<<<<\n1}; var x = T{2\n====\n>>>>\n", "neither an expression nor"},
		"closed early":       {ok + "-- a F --\n<<<<\n1}.x + T{2\n====\n>>>>\n", "neither an expression nor"},
		"unfinished":         {ok + "-- a/a.go --\n<<<<\nx\n====\n", "does not end with >>>>"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("m", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
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
