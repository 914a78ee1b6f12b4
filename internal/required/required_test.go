package required

import (
	"io"
	"testing"
)

type config struct {
	Writer  io.Writer
	Call    func()
	Other   *int `required:"false"`
	Name    string
	private *int
}

func TestFields(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]config{
		"required.config needs Writer":  {Call: func() {}},
		"required.config needs Call":    {Writer: io.Discard},
		"required.config needs private": {Writer: io.Discard, Call: func() {}},
		"":                              {Writer: io.Discard, Call: func() {}, private: new(int)},
	} {
		got := ""
		if err := Fields(&c); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
