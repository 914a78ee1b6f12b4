package repotest

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	required   = regexp.MustCompile(`(?m)^\t(\S+) v\S+$`) // indirect ones have a comment
	tool       = regexp.MustCompile(`(?m)^(?:tool |\t)(\S+/v\d+)/cmd/\S+$`)
	testModule = regexp.MustCompile("(?m)^- `(\\S+)`$")
)

// TestModulesOfTestsAreNotInTheGateway: the list of test-only modules in docs/dependencies.md is equal to the modules
// that go.mod requires but neither the gateway nor the demo links.
func TestModulesOfTestsAreNotInTheGateway(t *testing.T) {
	atRoot(t)
	sources(t) // opens the sources that the go command reads, so that changes invalidate the cached result
	linked, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./cmd/gateway", "./cmd/gateway-demo").Output()
	if err != nil {
		t.Fatal(err)
	}
	of := strings.Fields(string(linked))
	if !slices.Contains(of, "go.uber.org/zap") {
		t.Fatalf("the gateway is linked from %v", of)
	}
	_, section, _ := strings.Cut(read(t, "docs/dependencies.md"), "## Only for tests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := firsts(testModule, section)
	mod := read(t, "go.mod")
	for _, module := range append(firsts(required, mod), firsts(tool, mod)...) {
		switch inGateway, isListed := slices.Contains(of, module), slices.Contains(listed, module); {
		case inGateway && isListed:
			t.Errorf("%s is in the gateway; docs/dependencies.md says that only tests use it", module)
		case !inGateway && !isListed:
			t.Errorf("%s is not in the gateway, but not among those that only tests use in docs/dependencies.md", module)
		}
		listed = slices.DeleteFunc(listed, func(l string) bool { return l == module })
	}
	if len(listed) > 0 {
		t.Errorf("docs/dependencies.md lists %v, which go.mod does not require", listed)
	}
}

// TestTestInternetIsNotInTheGateway: the program that holds keys contains no servers, certificate authorities or labs
// of the demo and the tests; they are in gateway-demo.
func TestTestInternetIsNotInTheGateway(t *testing.T) {
	atRoot(t)
	sources(t) // as above
	for program, want := range map[string]bool{"./cmd/gateway": false, "./cmd/gateway-demo": true} {
		linked, err := exec.CommandContext(t.Context(), "go", "list", "-deps", program).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, pkg := range []string{"internal/lab", "internal/testnet"} {
			found := slices.ContainsFunc(strings.Fields(string(linked)), func(l string) bool {
				return l == "boxgate/"+pkg || strings.HasPrefix(l, "boxgate/"+pkg+"/")
			})
			if found != want {
				t.Errorf("%s is linked from %s: %v", program, pkg, found)
			}
		}
	}
}

// TestEveryDependencyHasALine: docs/dependencies.md lists every dependency.
func TestEveryDependencyHasALine(t *testing.T) {
	atRoot(t)
	text, mod := read(t, "docs/dependencies.md"), read(t, "go.mod")
	for _, module := range append(firsts(required, mod), firsts(tool, mod)...) {
		if !regexp.MustCompile(`(?m)^\| (\S+, )*` + regexp.QuoteMeta(module) + `[,/ ]`).MatchString(text) {
			t.Errorf("docs/dependencies.md has no line for %s", module)
		}
	}
}

// firsts returns the first group of each match.
func firsts(re *regexp.Regexp, text string) (found []string) {
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}
