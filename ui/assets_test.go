package ui

import (
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
)

// maxModules bounds the scripts of the dashboard in all, in bytes as sent.
const maxModules = 15 << 10

// TestScriptsAreSmall bounds the size of all scripts, and of the style.
func TestScriptsAreSmall(t *testing.T) {
	t.Parallel()
	scripts := 0
	for name, a := range assets {
		if path.Ext(name) == ".js" {
			scripts += len(a.content)
		}
	}
	if scripts >= maxModules || scripts == 0 {
		t.Errorf("the scripts have %d bytes; want less than %d", scripts, maxModules)
	}
	if n := len(assets[assetNames["style.css"]].content); n > 16<<10 {
		t.Errorf("the style has %d bytes", n)
	}
}

// unsafe matches code that makes markup, styles or scripts from strings, which the Content-Security-Policy refuses.
var unsafe = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|DOMParser|createContextualFragment|setAttribute\("(?:on|style|src)|javascript:|import\(`)

// TestScriptsMakeNoMarkup: scripts make text nodes and elements only.
func TestScriptsMakeNoMarkup(t *testing.T) {
	t.Parallel()
	for name, a := range assets {
		if found := unsafe.Find(a.content); path.Ext(name) == ".js" && found != nil {
			t.Errorf("%s contains %s", name, found)
		}
	}
}

// inline matches styles, scripts and handlers in the markup of a template.
var inline = regexp.MustCompile(`<style|<script(?: type="module")?>|\s(?:on[a-z]+|style)="|javascript:|<base|http-equiv`)

// TestTemplatesHaveNoInlineCode: the Content-Security-Policy permits none. Templates also insert no text without escaping.
func TestTemplatesHaveNoInlineCode(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		text, err := fs.ReadFile(templateFiles, file)
		if err != nil {
			t.Fatal(err)
		}
		if found := inline.Find(text); found != nil {
			t.Errorf("%s contains %s", file, found)
		}
		if strings.Contains(string(text), `method="post"`) && !strings.Contains(string(text), `name="token"`) && !strings.Contains(string(text), `{{template "token"`) {
			t.Errorf("a form of %s lacks the token", file)
		}
	}
}

// TestAssets: the assets that a page names exist, with their types, and so do those that scripts import.
func TestAssets(t *testing.T) {
	t.Parallel()
	g := serve(t)
	id := g.host.Add(t, api.CreateRequest{Name: "first"})
	b := g.as(t, apitest.Key)
	_, page := b.get(t, boxPath(id))
	named := regexp.MustCompile(`"(/ui/assets/[^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(named) < 4 {
		t.Fatalf("the page names %v", named)
	}
	types := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	for len(named) > 0 {
		at := named[0][1]
		named = named[1:]
		resp, text := b.get(t, at)
		if want := types[path.Ext(at)]; resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != want {
			t.Errorf("%s: %s %s; want %s", at, resp.Status, resp.Header.Get("Content-Type"), want)
		}
		for _, m := range regexp.MustCompile(`from "\./([^"]+)"`).FindAllStringSubmatch(text, -1) {
			named = append(named, []string{"", "/ui/assets/" + m[1]})
		}
	}
}
