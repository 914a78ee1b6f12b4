package required

import (
	"bytes"
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
	for _, tt := range []struct {
		c    config
		want string
	}{
		{config{Call: func() {}}, "required.config needs Writer"},
		{config{Writer: (*bytes.Buffer)(nil), Call: func() {}}, "required.config needs Writer"},
		{config{Writer: io.Discard}, "required.config needs Call"},
		{config{Writer: io.Discard, Call: func() {}}, "required.config needs private"},
		{config{Writer: io.Discard, Call: func() {}, private: new(int)}, ""},
	} {
		got := ""
		if err := Fields(&tt.c); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
