package spec

import (
	"regexp"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/policy/name"
)

// Limits on what a box is labelled and configured with.
const (
	MaxLabels = 5
	MaxSkills = 64
	maxArgs   = 256 // of a custom harness
	maxText   = 256 // bytes of a line of text
)

var (
	labelPat = regexp.MustCompile(`^[A-Za-z0-9._:=-]{1,20}$`)
	envPat   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	skillPat = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){1,2}$`)
)

// Label checks one label.
func Label(p *problem.List, at, label string) {
	if !labelPat.MatchString(label) {
		p.Add(at, "must be 1 to 20 letters, digits, '.', '_', '-', ':' or '='")
	}
}

// Skill checks the ID of a skill.
func Skill(p *problem.List, at, skill string) {
	if !skillPat.MatchString(skill) {
		p.Add(at, "must be owner/repository or owner/repository/skill")
	}
}

// Model checks the name of a model.
func Model(p *problem.List, at, model string) { Text(p, at, model, maxText, false) }

// Runner checks a custom harness.
func Runner(p *problem.List, at string, r *api.CustomRunner) {
	if r.Command == "" {
		p.Add(at+"/command", "is required")
	}
	Text(p, at+"/command", r.Command, 4095, false)
	if len(r.Args) > maxArgs {
		p.Add(at+"/args", "at most %d arguments", maxArgs)
	}
	for i, arg := range r.Args {
		if len(arg) > api.MaxArgument || strings.ContainsRune(arg, 0) {
			p.Add(at+"/args/"+strconv.Itoa(i), "must be at most %d bytes without NUL", api.MaxArgument)
		}
	}
	if r.Protocol != "" && r.Protocol != "box-sse-v1" {
		p.Add(at+"/protocol", "must be box-sse-v1")
	}
}

// VariableName checks the name of an environment variable.
func VariableName(p *problem.List, at, name string) {
	if !envPat.MatchString(name) {
		p.Add(at, "the name must be letters, digits and '_', not beginning with a digit")
	}
}

// Environment checks the variables at a pointer, and returns them as secrets.
func Environment(p *problem.List, at string, vars map[string]string) map[string]name.Secret {
	env := make(map[string]name.Secret, len(vars))
	for n, value := range vars {
		one := at + "/" + problem.EscapeKey(n)
		VariableName(p, one, n)
		Variable(p, one, n, value)
		env[n] = name.NewSecret(value)
	}
	if sum := api.EnvironmentSize(env); sum > api.MaxEnvironment {
		p.Add(at, "the variables need %d bytes; the limit is %d, above which the kernel starts no command", sum, api.MaxEnvironment)
	}
	return env
}

// Variable checks the value of an environment variable.
func Variable(p *problem.List, at, name, value string) {
	if strings.ContainsRune(value, 0) {
		p.Add(at, "the value must not contain NUL")
	}
	if size := len(name) + len("=") + len(value); size > api.MaxArgument {
		p.Add(at, "name and value have %d bytes together; the limit is %d, above which the kernel starts no command", size, api.MaxArgument)
	}
}

// Text refuses text that is too long or holds control bytes; lines says whether line breaks and tabs are allowed.
func Text(p *problem.List, at, text string, most int, lines bool) {
	bad := func(r rune) bool {
		return r == 0x7f || r < ' ' && (!lines || r != '\n' && r != '\t' && r != '\r')
	}
	if len(text) > most || strings.ContainsFunc(text, bad) {
		p.Add(at, "must be at most %d bytes without control characters", most)
	}
}
