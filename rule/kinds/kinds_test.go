package kinds

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/rule"
)

// TestKinds: what an effect writes is read as the same effect, what it shows has a line and no literal, and neither has what programs print of
// it.
func TestKinds(t *testing.T) {
	t.Parallel()
	for _, kind := range All {
		e := parse(t, kind, kind.Example())
		written, err := json.Marshal(e.Document())
		if err != nil {
			t.Fatal(kind.Key(), err)
		}
		if again := parse(t, kind, string(written)); !again.Equal(e) || e.Key() != kind.Key() {
			t.Errorf("%s: %s is read as another effect", kind.Key(), written)
		}
		shown, err := json.Marshal(e.Show())
		if err != nil || kind.Line(shown) == "" || kind.Line([]byte(`"`)) != "" {
			t.Errorf("%s is shown as %q: %q, %v", kind.Key(), shown, kind.Line(shown), err)
		}
		out := string(shown) + kind.Line(shown)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			out += fmt.Sprintf(verb, e) + fmt.Sprintf(verb, reflect.Indirect(reflect.ValueOf(e)).Interface())
		}
		if strings.Contains(out, "sk-") || strings.Contains(out, "736b2d") {
			t.Errorf("%s shows its literals: %s", kind.Key(), out)
		}
	}
}

func parse(t *testing.T, kind rule.Kind, text string) rule.Effect {
	t.Helper()
	c := &rule.Context{}
	v, _ := document.Parse([]byte(text), &c.Problems)
	e := kind.Parse("", v, c)
	if e == nil || c.Err() != nil {
		t.Fatal(kind.Key(), text, c.Err())
	}
	return e
}
