// Package spec has the JSON of policies and header rules, which stand in the bodies of several endpoints, in every form
// that it may be written in.
package spec

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/internal/lazyregexp"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/name"
)

var (
	labelPat = lazyregexp.New(`^[A-Za-z0-9._:=-]{1,20}$`)
	envPat   = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	skillPat = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){1,2}$`)
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
func Model(p *problem.List, at, model string) { Line(p, at, model) }

// Runner checks a custom harness.
func Runner(p *problem.List, at string, r *api.CustomRunner) {
	if r.Command == "" {
		p.Add(at+"/command", "is required")
	}
	Text(p, at+"/command", r.Command, 4095, false)
	StoredCommand(p, at+"/args", r.Args)
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
	if len(vars) > MaxVariables {
		p.Add(at, "has %d variables; the limit is %d", len(vars), MaxVariables)
		return env
	}
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

// Command checks a program and its arguments.
func Command(p *problem.List, at string, command []string) {
	if len(command) == 0 || command[0] == "" {
		p.Add(at, "must name a program, such as [\"ls\", \"-l\"]")
	}
	sum := 0
	for i, arg := range command {
		if strings.ContainsRune(arg, 0) {
			p.Add(at+"/"+strconv.Itoa(i), "must not contain NUL")
		}
		if len(arg) > api.MaxArgument {
			p.Add(at+"/"+strconv.Itoa(i), "has %d bytes; the limit is %d, above which the kernel does not start it", len(arg), api.MaxArgument)
		}
		sum += len(arg) + api.ArgumentCost
	}
	if sum > api.MaxArguments {
		p.Add(at, "needs %d bytes; the limit is %d, above which the kernel does not start it", sum, api.MaxArguments)
	}
}

// Folder returns a working directory as an absolute path. One that is not absolute is below the home directory of the box's user.
func Folder(p *problem.List, at, home, folder string) string {
	if strings.ContainsRune(folder, 0) || len(folder) > 4095 {
		p.Add(at, "is not a path")
	}
	if dir := path.Clean(folder); path.IsAbs(dir) {
		return dir
	}
	return path.Join(home, folder)
}

// validUser matches the users that a command may run as, besides the box's own. The launcher looks up no other names, because the box
// can write its own user database.
var validUser = lazyregexp.New(`^(boxuser|root|[0-9]{1,5}(:[0-9]{1,5})?)?$`)

// User checks the user of a command: the name of the box's ordinary user, boxuser, root, or IDs below 65536, as UID or UID:GID. Empty is
// the ordinary user, and so is boxuser.
func User(p *problem.List, at, ordinary, user string) string {
	valid := user == ordinary || validUser.MatchString(user)
	for id := range strings.SplitSeq(user, ":") {
		if n, err := strconv.Atoi(id); err == nil && n >= 1<<16 {
			valid = false
		}
	}
	if !valid {
		p.Add(at, "must be %s, root, or IDs below 65536 as UID or UID:GID; other names are not looked up", ordinary)
	}
	return user
}

var (
	validName = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,31}$`)
	validHome = lazyregexp.New(`^/(home|workspace)/[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$`)
)

// UserName checks the name of the ordinary user of a new box; empty is the default.
func UserName(p *problem.List, at, name string) {
	if name == "root" || name != "" && !validName.MatchString(name) {
		p.Add(at, "must be 1 to 32 lower-case letters, digits, '-' or '_', beginning with a letter or '_', and not root")
	}
}

// Home checks the home directory of the ordinary user of a new box; empty is the default.
func Home(p *problem.List, at, dir string) {
	if dir != "" && !validHome.MatchString(dir) {
		p.Add(at, "must be one directory below /home or /workspace, such as /home/user: letters, digits, '.', '-' and '_' only")
	}
}

// githubToken matches tokens of GitHub, including likely future forms.
var githubToken = lazyregexp.New(`^[A-Za-z0-9_.=+/~-]{1,1000}$`)

// GitHub returns the header rules that take the place of a token of GitHub: git and the API get it on their way, and the
// box never has it. A bad token is a problem at the pointer.
func GitHub(p *problem.List, at, token string) []policy.HeaderRule {
	if !githubToken.MatchString(token) {
		p.Add(at, "is not a token of GitHub")
		return nil
	}
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + token))
	rules, err := policy.ParseHeaders(map[string]map[string]string{
		"github.com":     {"Authorization": "Basic " + basic}, // git over HTTPS knows no other form
		"api.github.com": {"Authorization": "Bearer " + token},
	})
	if err != nil {
		p.Add(at, "is not a token of GitHub")
	}
	return rules
}

// WithGitHub adds the rules of [GitHub] to others, which go first: a host that has a rule keeps it.
func WithGitHub(p *problem.List, at, token string, rules []policy.HeaderRule) []policy.HeaderRule {
	if token == "" {
		return rules
	}
	for _, rule := range GitHub(p, at, token) {
		if !slices.ContainsFunc(rules, func(r policy.HeaderRule) bool { return r.Pattern == rule.Pattern }) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// Source reads the source addresses of a box. The error is about the field that the pointer names.
func Source(pointer string, list []string) (policy.Source, error) {
	s, err := policy.ParseSource(list)
	if err != nil {
		return policy.Source{}, problem.Invalid(pointer, "%v", err)
	}
	return s, nil
}

// Limits is the JSON of limits of one box: name to number, or to null for that of the configuration.
type Limits struct{ json.RawMessage }

// Forms describes the limits.
func (Limits) Forms() []reflect.Type { return []reflect.Type{reflect.TypeFor[LimitsForm]()} }

// LimitsForm describes limits. docs/limits.md says more about each.
type LimitsForm struct {
	Connections    int64 `json:"connections,omitempty" doc:"open through the gateway"`
	NewConnections int64 `json:"new_connections_per_second,omitempty"`
	Interceptions  int64 `json:"interceptions,omitempty" doc:"connections whose TLS is terminated"`
	Streams        int64 `json:"streams,omitempty" doc:"HTTP/2 requests in progress"`
	Requests       int64 `json:"requests_per_second,omitempty"`
	Upstreams      int64 `json:"upstreams,omitempty" doc:"connections to servers for HTTP requests"`
	DNSQueries     int64 `json:"dns_queries_per_second,omitempty"`
	Send           int64 `json:"send_bytes_per_second,omitempty" doc:"0: no limit"`
	Receive        int64 `json:"receive_bytes_per_second,omitempty" doc:"0: no limit"`
	Quota          int64 `json:"quota,omitempty" doc:"bytes in a period of limits.quota_period; 0: no limit"`
	Memory         int64 `json:"memory,omitempty" doc:"bytes that the gateway holds for the box"`

	Model *llm.Limit `json:"model,omitempty" doc:"what models may cost (docs/budgets.md); an object without tokens and usd: no limit"`
}

// Change reads the limits at a pointer. The body has been checked to be JSON without duplicate keys.
func (l Limits) Change(p *problem.List, at string) api.LimitChange {
	if len(l.RawMessage) == 0 {
		return nil
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(l.RawMessage, &entries); err != nil || entries == nil {
		p.Add(at, "must be an object of limits and numbers")
		return nil
	}
	change := api.LimitChange{}
	for name, text := range entries {
		one := at + "/" + problem.EscapeKey(problem.Clip(name))
		if name == modelLimit {
			continue // see Model
		}
		limit, known := policy.LimitNamed(name)
		if !known {
			p.Add(one, "is no limit that a box can have of its own; there are %s and %s", policy.LimitNames(), modelLimit)
			continue
		}
		if string(text) == "null" {
			change[limit] = 0
			continue
		}
		var n int64
		if err := json.Unmarshal(text, &n); err != nil {
			p.Add(one, "must be a whole number, or null for that of the configuration")
			continue
		}
		value, err := limit.Value(n)
		if err != nil {
			p.Add(one, "%v", err)
			continue
		}
		change[limit] = value
	}
	return change
}

// modelLimit is the name of the limit of models among the limits.
const modelLimit = "model"

// Model reads the limit of models at a pointer; nil: it is not given. The body has been checked to be JSON without duplicate keys.
func (l Limits) Model(p *problem.List, at string) *llm.Limit {
	var entries map[string]json.RawMessage
	if json.Unmarshal(l.RawMessage, &entries) != nil || entries[modelLimit] == nil {
		return nil // Change reports it
	}
	return ModelLimit(p, at+"/"+modelLimit, entries[modelLimit])
}

// ModelLimit reads a limit of models at a pointer; null is one that is not set, and no text is nil.
func ModelLimit(p *problem.List, at string, text json.RawMessage) *llm.Limit {
	switch string(text) {
	case "":
		return nil
	case "null":
		return &llm.Limit{}
	}
	var limit llm.Limit
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&limit)
	if err != nil {
		p.Add(at, `must be an object such as {"tokens":1000000,"usd":5,"per":"day"}, or null for that of the configuration`)
		return nil
	}
	if limit, err = limit.Check(); err != nil {
		p.Add(at, "%v", err)
		return nil
	}
	return &limit
}
