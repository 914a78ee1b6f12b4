package policy

import (
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestConvert compares conversions with the tables of testdata/convert: a document, named by its dialect, is followed by
// it in the others, or by what they cannot say. What another dialect can say means the same when it is read again.
func TestConvert(t *testing.T) {
	eachArchive(t, "testdata/convert/*.txtar", func(t *testing.T, a *txtar.Archive) {
		from := Dialect(a.Files[0].Name)
		for i := 1; i < len(a.Files); i++ {
			to := Dialect(strings.TrimPrefix(a.Files[i].Name, "to "))
			out, err := Convert(a.Files[0].Data, from, to)
			if err != nil {
				a.Files[i].Data = []byte(strings.ReplaceAll(err.Error(), "; /", "\n/") + "\n")
				continue
			}
			a.Files[i].Data = append(out, '\n')
			back, err := Convert(out, to, DialectBoxgate)
			if err != nil {
				t.Fatalf("%s: what was written cannot be read: %v\n%s", to, err, out)
			}
			if again, err := Convert(back, DialectBoxgate, to); err != nil || string(again) != string(out) {
				t.Errorf("%s: came back as %s, %v", to, again, err)
			}
		}
	})
}
