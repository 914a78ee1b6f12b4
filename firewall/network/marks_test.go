package network

import "testing"

func TestNamesAndMarks(t *testing.T) {
	if n := LinkName("0123456789abcdef0123456789abcdef"); len(n) > 15 || n[:2] != "bg" {
		t.Errorf("interface name %q", n)
	}
	if LinkName("a") == LinkName("b") || BoxMark("a") == BoxMark("b") || BoxMark("a")&FlowForwarded != 0 || BoxMark("a")&MarkedBox == 0 {
		t.Error("names or marks of two boxes")
	}
}
