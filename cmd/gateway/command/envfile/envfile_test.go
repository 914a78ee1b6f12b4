package envfile

import (
	"slices"
	"strings"
	"testing"
)

// TestNothingIsExpandedOrRun: values are parsed exactly as by systemd.
func TestNothingIsExpandedOrRun(t *testing.T) {
	text := "# A=comment\n; B=comment\n\nnothing\nSPACED=a b  \n PASS = p$HOME`id`$(id);x\n" +
		"SINGLE='a \\ \"$b'\nDOUBLE=\"a \\\"\\$b\\n\" 'c'\nLONG=a\\\nb\nINNER=a\"b\"\n2=x\nEMPTY=\nLAST=\\ x\\"
	want := []Variable{
		{"SPACED", "a b"}, {"PASS", "p$HOME`id`$(id);x"}, {"SINGLE", `a \ "$b`}, {"DOUBLE", `a "$b\nc`}, {"LONG", "ab"},
		{"INNER", `a"b"`}, {"EMPTY", ""}, {"LAST", ` x\`},
	}
	if got := Parse(text); !slices.Equal(got, want) {
		t.Errorf("%q\nis not\n%q", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("A='b\nc' \"d\\\n\"\n#x\nE=f\\\n g")
	f.Fuzz(func(t *testing.T, text string) {
		for _, v := range Parse(text) {
			if !isName.MatchString(v.Name) || !strings.Contains(text, v.Name) || len(v.Value) > len(text) {
				t.Errorf("%q", v)
			}
		}
		if got := Parse("A='" + strings.ReplaceAll(text, "'", "") + "'"); len(got) != 1 || got[0].Value != strings.ReplaceAll(text, "'", "") {
			t.Errorf("quoted: %q", got)
		}
	})
}
