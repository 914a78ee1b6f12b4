package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"boxgate/internal/lab/demo"
)

// The picture in the documentation must show the steps of the demo. After a change of the demo, run `make docs`.
func TestPictureIsOfThisDemo(t *testing.T) {
	t.Parallel()
	picture, err := os.ReadFile("../../docs/pictures/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	var titles []string
	for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch e := token.(type) {
		case xml.CharData:
			text.Write(e)
		case xml.StartElement:
			text.Reset()
			if e.Name.Local == "script" {
				t.Error("a script")
			}
		case xml.EndElement:
			if _, title, ok := strings.Cut(text.String(), " of 10  "); ok && e.Name.Local == "text" {
				titles = append(titles, title)
			}
		}
	}
	if want := demo.Titles(); strings.Join(titles, "\n") != strings.Join(want, "\n") {
		t.Errorf("the picture shows\n%s\nand the demo\n%s\nrun `make docs`", strings.Join(titles, "\n"), strings.Join(want, "\n"))
	}
	if len(picture) > 64<<10 {
		t.Errorf("%d bytes", len(picture))
	}
}

const printed = "   boxgate\n\n\x1b[1m1 of 2  A <step>\x1b[0m  (0.1 s)\n   About & so on.\n   \x1b[36m$ run --key sk-demo-abc123\x1b[0m\n" +
	"   decision: 08:36:27.662  DENY   demo  took=6.27ms\n\n\x1b[1m2 of 2  Another\x1b[0m  (5.4 s)\n   Said.\n\n\x1b[1mSummary\x1b[0m\n  ok\n\nWhat you saw\n"

// Values that change with each run are not in the picture, and printed text cannot be parsed as markup.
func TestRecord(t *testing.T) {
	t.Parallel()
	var first, second strings.Builder
	if err := record(strings.NewReader(printed), &first); err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer("abc123", "xyz", "08:36:27.662", "11:11:11.111", "6.27ms", "9ms", "0.1 s", "7.1 s").Replace(printed)
	if err := record(strings.NewReader(other), &second); err != nil || first.String() != second.String() {
		t.Errorf("two runs differ: %v\n%s\n%s", err, &first, &second)
	}
	for _, want := range []string{"1 of 2  A &lt;step&gt;", `class="typed"`, `class="deny"`, "sk-demo-…", "About &amp; so on."} {
		if !strings.Contains(first.String(), want) {
			t.Errorf("%q is not in\n%s", want, &first)
		}
	}
	if err := record(strings.NewReader("1 of 2  A  (0.1 s)\n"), io.Discard); err == nil {
		t.Error("a demo that was not complete")
	}
}

// TestPictureWithoutAnimation: a renderer without animations shows three whole steps, and nothing else.
func TestPictureWithoutAnimation(t *testing.T) {
	t.Parallel()
	picture, err := os.ReadFile("../../docs/pictures/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	text := string(picture)
	_, still, _ := strings.Cut(text, `<g class="still">`)
	still, _, _ = strings.Cut(still, "</g>")
	for class, want := range map[string]int{"title": 3, "typed": 4, "deny": 1, "allow": 1} {
		if n := strings.Count(still, `class="`+class+`"`); n != want {
			t.Errorf("%d lines %s in the still picture, want %d:\n%s", n, class, want, still)
		}
	}
	if frames := len(demo.Titles()); strings.Count(text, `<g class="frame" opacity="0"`) != frames || strings.Count(text, "<g ") != frames+1 {
		t.Error("more than the still picture is visible without animations")
	}
	if !strings.Contains(text, ".still { animation: hide ") || !strings.Contains(text, "@keyframes hide { 0%, 100% { opacity: 0; } }") {
		t.Error("the animation does not hide the still picture")
	}
}
