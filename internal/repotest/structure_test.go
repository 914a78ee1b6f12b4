package repotest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/structure/measure"
)

// The limits for functions, in lines. `make structure` prints the lengths by package.
const (
	maxMedianFunction = 10
	maxP90Function    = 26
	maxFunction       = 59
)

// TestFunctionsAreShort checks the limits for functions.
func TestFunctionsAreShort(t *testing.T) {
	atRoot(t)
	packages, err := measure.Module(".")
	if err != nil {
		t.Fatal(err)
	}
	var functions []measure.Function
	for _, p := range packages {
		functions = append(functions, p.Functions...)
	}
	for _, f := range functions {
		if f.Lines > maxFunction {
			t.Errorf("%s has %d lines; the limit is %d", f.Name, f.Lines, maxFunction)
		}
	}
	if s := measure.SizesOf(functions); s.Median > maxMedianFunction || s.P90 > maxP90Function {
		t.Errorf("functions have a median of %d lines and a 90th percentile of %d; the limits are %d and %d",
			s.Median, s.P90, maxMedianFunction, maxP90Function)
	}
}

// TestPointersBecomeNumbersInTheSystemCall: a uintptr made from a pointer is safe only in the arguments of the system
// call itself (unsafe.Pointer, pattern 4). When the stack grows, its variables move but the uintptr does not change,
// and the kernel would write to the old address. go vet does not check this.
func TestPointersBecomeNumbersInTheSystemCall(t *testing.T) {
	atRoot(t)
	found := 0
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		inCalls := map[ast.Node]bool{}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && strings.Contains(f.Sel.Name, "yscall") {
				for _, argument := range call.Args {
					inCalls[argument] = true
				}
			}
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "uintptr" && len(call.Args) == 1 && isPointer(call.Args[0]) {
				found++
				if !inCalls[call] {
					t.Errorf("%s: a pointer becomes a number outside of the arguments of a system call", s.path)
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("%d pointers that become numbers were found", found)
	}
}

func isPointer(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Pointer" {
		return false
	}
	of, ok := f.X.(*ast.Ident)
	return ok && of.Name == "unsafe"
}

// TestSharedNamesAreWrittenOnce: names used by several packages are one constant, in the listed package.
func TestSharedNamesAreWrittenOnce(t *testing.T) {
	atRoot(t)
	once := map[string]string{
		`"X-Box-Api-Key"`: "api", `"X-Boxgate-Skipped"`: "api", `"secret.key"`: "store/layout",
		`"BOXGATE_CONFIG"`: "config", `"BOXGATE_ADMIN"`: "config", `"BOXGATE_API_KEY"`: "config",
	}
	found := map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || once[literal.Value] == "" {
				return true
			}
			found[literal.Value] = true
			if dir := path.Dir(s.path); dir != once[literal.Value] {
				t.Errorf("%s: %s is a constant of package %s", s.path, literal.Value, once[literal.Value])
			}
			return true
		})
	}
	if len(found) != len(once) {
		t.Errorf("%d of the %d names are written anywhere", len(found), len(once))
	}
}

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
