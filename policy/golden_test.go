package policy_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"boxgate/policy"
	"boxgate/policy/dialect"
	"boxgate/policy/name"
	"boxgate/policy/policytest"
	"boxgate/rule/header"
)

// TestGoldenDecisions compares decisions with the tables of testdata/decisions: one policy per file, one question per
// line.
func TestGoldenDecisions(t *testing.T) {
	policytest.EachArchive(t, "testdata/decisions/*.txtar", func(t *testing.T, a *txtar.Archive) {
		c := compileArchive(t, a)
		for i, f := range a.Files {
			switch f.Name {
			case "decisions":
				a.Files[i].Data = answer(t, f.Data, c)
			case "warnings":
				a.Files[i].Data = policytest.ProblemLines(c.Warnings())
			case "kernel":
				a.Files[i].Data = kernelLines(c.Kernel())
			}
		}
	})
}

func compileArchive(t *testing.T, a *txtar.Archive) *policy.Compiled {
	t.Helper()
	var spec policy.Spec
	var rules []policy.HeaderRule
	var ranges struct{ Exempt, Own []netip.Prefix }
	for _, f := range a.Files {
		var err error
		switch f.Name {
		case "policy.json":
			spec, rules, err = dialect.Parse(f.Data)
		case "headers.json":
			rules, err = policy.ParseHeaderRules(f.Data, nil)
		case "protected.json":
			err = json.Unmarshal(f.Data, &ranges)
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
	}
	c, err := policy.Compile(spec, policy.Options{Version: 7, Headers: rules, Protected: name.NewProtected(ranges.Exempt, ranges.Own)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer writes the decision after each question: stage, protocol, name, address, port (- for unknown) and, at the
// stage http, method and path.
func answer(t *testing.T, table []byte, c *policy.Compiled) []byte {
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
			for _, h := range header.Of(rule.Effects) {
				fmt.Fprintf(&out, ", set %s", h.Name)
			}
			for _, p := range rule.Placeholders() {
				fmt.Fprintf(&out, ", replace %s", p.Variable)
			}
		}
		out.WriteString("\n")
	}
	return []byte(out.String())
}

func parseQuestion(t *testing.T, line string) policy.Request {
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
	r := policy.Request{Stage: policy.Stage(f[0]), Protocol: policy.Protocol(f[1])}
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

func kernelLines(p policy.KernelPlan) []byte {
	ports := func(s name.PortSet) string {
		if s.All {
			return "all"
		}
		return fmt.Sprint(s.Ports)
	}
	return fmt.Appendf(nil, "default allow: %t\nallowed: %v\ndenied: %v\nsteer allowed: %s\nsteer other: %s\nreject UDP: %s\n",
		p.DefaultAllow, p.Allowed, p.Denied, ports(p.SteerAllowed), ports(p.SteerOther), ports(p.RejectUDP))
}
