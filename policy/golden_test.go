package policy

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"boxgate/policy/document"
	"boxgate/policy/name"

	"github.com/rogpeppe/go-internal/txtar"
)

// The tables under testdata are meant to be read. After a change of behaviour, `go test ./policy -run Golden -update`
// writes what is decided now, and the difference is reviewed like code.
var update = flag.Bool("update", false, "rewrite the golden tables")

// TestGoldenDecisions compares decisions with the tables of testdata/decisions: one policy per file, one question per
// line.
func TestGoldenDecisions(t *testing.T) {
	eachArchive(t, "testdata/decisions/*.txtar", func(t *testing.T, a *txtar.Archive) {
		c := compileArchive(t, a)
		for i, f := range a.Files {
			switch f.Name {
			case "decisions":
				a.Files[i].Data = answer(t, f.Data, c)
			case "warnings":
				a.Files[i].Data = problemLines(c.Warnings())
			case "kernel":
				a.Files[i].Data = kernelLines(c.Kernel())
			}
		}
	})
}

// TestGoldenProblems compares the errors about bad policies and headers with the tables of testdata/problems: each
// document is followed by its problems.
func TestGoldenProblems(t *testing.T) {
	eachArchive(t, "testdata/problems/*.txtar", func(t *testing.T, a *txtar.Archive) {
		for i := 0; i+1 < len(a.Files); i += 2 {
			doc := a.Files[i]
			err := readAny(doc)
			invalid, ok := errors.AsType[*document.InvalidError](err)
			if !ok {
				t.Errorf("%s: want an *InvalidError, got %v", doc.Name, err)
				continue
			}
			a.Files[i+1].Data = problemLines(invalid.Problems)
			if strings.Contains(err.Error(), "SECRET") {
				t.Errorf("%s: the error shows a header value: %v", doc.Name, err)
			}
		}
	})
}

func readAny(f txtar.File) error {
	if !strings.HasSuffix(f.Name, ".headers.json") {
		_, _, err := ParseNetworkPolicy(f.Data)
		return err
	}
	_, err := ParseHeaderRules(f.Data, func(secret string) bool { return secret == "openai" })
	return err
}

// eachArchive runs rewrite on each archive and compares the result with the file.
func eachArchive(t *testing.T, glob string, rewrite func(*testing.T, *txtar.Archive)) {
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a := txtar.Parse(want)
			rewrite(t, a)
			got := txtar.Format(a)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			diffLines(t, string(want), string(got))
		})
	}
}

func diffLines(t *testing.T, want, got string) {
	t.Helper()
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		var a, b string
		if i < len(w) {
			a = w[i]
		}
		if i < len(g) {
			b = g[i]
		}
		if a != b {
			t.Errorf("line %d:\nwant %s\ngot  %s", i+1, a, b)
		}
	}
}

func compileArchive(t *testing.T, a *txtar.Archive) *Compiled {
	t.Helper()
	var spec Spec
	var rules []HeaderRule
	var ranges struct{ Exempt, Own []netip.Prefix }
	for _, f := range a.Files {
		var err error
		switch f.Name {
		case "policy.json":
			spec, rules, err = ParseNetworkPolicy(f.Data)
		case "headers.json":
			rules, err = ParseHeaderRules(f.Data, nil)
		case "protected.json":
			err = json.Unmarshal(f.Data, &ranges)
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	c, err := Compile(spec, rules, name.NewProtected(ranges.Exempt, ranges.Own), 7)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer writes the decision after each question: stage, protocol, name, address, port (- for unknown) and, at the
// stage http, method and path.
func answer(t *testing.T, table []byte, c *Compiled) []byte {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(string(table)) {
		question, _, found := strings.Cut(line, " -> ")
		if !found {
			out.WriteString(line)
			continue
		}
		r := parseQuestion(t, question)
		d := c.Decide(r)
		if d.Version != 7 {
			t.Errorf("%s: version %d", question, d.Version)
		}
		fmt.Fprintf(&out, "%s -> %s %s", question, d.Verdict, d.Reason)
		if d.Rule != "" {
			fmt.Fprintf(&out, " %q", d.Rule)
		}
		if d.DialName {
			out.WriteString(", dial the name")
		}
		if c.Intercepts(r.Name, r.Port) && r.Port != 0 {
			out.WriteString(", intercept")
		}
		rule, refused := c.HeaderRule(r)
		if refused.Reason != "" {
			fmt.Fprintf(&out, ", refuse %s", refused.Reason)
		} else {
			for _, h := range rule.Headers {
				fmt.Fprintf(&out, ", set %s", h.Name)
			}
			for _, p := range rule.Placeholders {
				fmt.Fprintf(&out, ", replace %s", p.Variable)
			}
		}
		out.WriteString("\n")
	}
	return []byte(out.String())
}

func parseQuestion(t *testing.T, line string) Request {
	t.Helper()
	f := strings.Fields(line)
	if len(f) != 5 && len(f) != 7 {
		t.Fatalf("%q: want stage, protocol, name, address, port, and perhaps method and path", line)
	}
	for i := range f {
		if f[i] == "-" {
			f[i] = ""
		}
	}
	r := Request{Stage: Stage(f[0]), Protocol: Protocol(f[1])}
	var err error
	if f[2] != "" {
		if r.Name, err = name.Parse(f[2]); err != nil {
			t.Fatal(err)
		}
	}
	if f[3] != "" {
		r.Addr = netip.MustParseAddr(f[3])
	}
	if f[4] != "" {
		port, err := strconv.ParseUint(f[4], 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		r.Port = uint16(port)
	}
	if len(f) == 7 {
		r.Method, r.Path = f[5], f[6]
	}
	return r
}

func problemLines(ps []document.Problem) []byte {
	var out strings.Builder
	for _, p := range ps {
		at := p.Pointer
		if at == "" {
			at = "(all)"
		}
		fmt.Fprintf(&out, "%s: %s\n", at, p.Message)
	}
	return []byte(out.String())
}

func kernelLines(p KernelPlan) []byte {
	ports := func(s name.PortSet) string {
		if s.All {
			return "all"
		}
		return fmt.Sprint(s.Ports)
	}
	return fmt.Appendf(nil, "default allow: %t\nallowed: %v\ndenied: %v\nsteer allowed: %s\nsteer other: %s\nreject UDP: %s\n",
		p.DefaultAllow, p.Allowed, p.Denied, ports(p.SteerAllowed), ports(p.SteerOther), ports(p.RejectUDP))
}
