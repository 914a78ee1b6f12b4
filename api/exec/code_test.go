package exec

import (
	"bytes"
	"testing"
)

func TestLackWatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		chunks []string
		passed string
		lack   string
	}{
		{[]string{"mark: no node"}, "", "no node"},
		{[]string{"ma", "rk: ", "no ", "node"}, "", "no node"},
		{[]string{"ma"}, "ma", ""},
		{[]string{"ma", "ybe", " not"}, "maybe not", ""},
		{[]string{"x", "mark: no node"}, "xmark: no node", ""},
		{nil, "", ""},
	} {
		var passed bytes.Buffer
		l := &markWatch{mark: "mark: ", w: &passed}
		for _, c := range tt.chunks {
			if n, err := l.Write([]byte(c)); n != len(c) || err != nil {
				t.Errorf("%q: %d, %v", tt.chunks, n, err)
			}
		}
		if what, lacking := l.message(); what != tt.lack || lacking != (tt.lack != "") || passed.String() != tt.passed {
			t.Errorf("%q: %q, %v; %q was passed on", tt.chunks, what, lacking, passed.String())
		}
	}
	l := &markWatch{mark: "mark: ", w: nil}
	for range 100 {
		_, _ = l.Write(append([]byte("mark: "), make([]byte, 1000)...))
	}
	if len(l.prefix) > maxMessage {
		t.Errorf("%d bytes are kept", len(l.prefix))
	}
}
