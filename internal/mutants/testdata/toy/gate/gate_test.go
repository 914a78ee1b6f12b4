package gate

import "testing"

func TestChildrenStayOutside(t *testing.T) {
	if Open(17) {
		t.Error("a child is inside")
	}
}

func TestNothingOfTheDead(t *testing.T) {
	if !Open(40) {
		t.Error("an adult is outside")
	}
}

func TestSkipped(t *testing.T) { t.Skip("not here") }

func TestAlwaysRed(t *testing.T) { t.Error("red") }
