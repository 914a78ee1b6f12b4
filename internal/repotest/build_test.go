package repotest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestHTTP2IsOurOwn: the gateway uses frames and HPACK of golang.org/x/net/http2, but not its server or client: with Go
// 1.27 or newer these wrap net/http, unless the build tag http2legacy is set.
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
