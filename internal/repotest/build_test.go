package repotest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestHTTP2IsOurOwn holds that the gateway takes frames and HPACK from golang.org/x/net/http2, and nothing that speaks
// HTTP/2 on its own: with Go 1.27 or newer that wraps net/http, unless the build tag http2legacy is set.
func TestHTTP2IsOurOwn(t *testing.T) {
	atRoot(t)
	speakers := []string{"Server", "Transport", "ClientConn", "ConfigureServer", "ConfigureTransport", "ConfigureTransports"}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || s.pkg == "conformance" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(speakers, sel.Sel.Name) {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "http2" {
					t.Errorf("%s uses http2.%s", s.path, sel.Sel.Name)
				}
			}
			return true
		})
	}
}
