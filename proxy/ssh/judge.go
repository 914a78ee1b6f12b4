package ssh

import (
	"fmt"
	"strings"

	"boxgate/policy"
	"boxgate/policy/name"
)

// judge decides about a command, shell or subsystem. It returns the command in the form to forward, which is the form that
// was judged, and for a refusal the text that the box sees.
func (c *conn) judge(kind, text string) (request Request, command, reason string) {
	request = Request{Verb: kind, What: firstWord(text), Decision: policy.Decision{Reason: name.ReasonRequestRule}}
	switch {
	case !c.Rule.Limited():
		request.Decision = policy.Decision{Verdict: policy.Allow} // the connection itself was allowed
		return request, text, ""
	case kind != "exec":
		return request, "", "the rule allows single commands only, not a " + kind
	}
	if c.Rule.Command(text) {
		request.Decision.Verdict, request.Decision.Rule = policy.Allow, "command "+name.Quote(text)
		return request, text, ""
	}
	if len(c.Rule.Repos) == 0 {
		return request, "", "the rule does not allow this command"
	}
	git, err := parseGit(text)
	if err != nil {
		return request, "", err.Error()
	}
	request.Verb, request.What = git.service, git.repo()
	repo, allowed := c.Rule.Repo(c.Host, git.service, git.path)
	if request.Decision.Rule = repo; allowed {
		request.Decision.Verdict = policy.Allow
	}
	return request, git.String(), fmt.Sprintf("the rule does not allow %s on %s", git.service, git.repo())
}

// firstWord returns the program's name without its arguments, which could contain secrets.
func firstWord(text string) string {
	const most = 64
	word, _, _ := strings.Cut(text, " ")
	return word[:min(len(word), most)]
}
