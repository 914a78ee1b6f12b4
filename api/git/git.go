package git

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/policy"
)

type folderQuery struct {
	Folder string `json:"folder,omitempty" doc:"directory of the repository, absolute or below /workspace/home; absent: /workspace/home" example:"app"`
}

// query returns the repository given in the query of a request.
func (e *Endpoints) query(r *http.Request) (repository, error) {
	var q folderQuery
	if err := rest.Query(r, &q); err != nil {
		return repository{}, err
	}
	return e.open(r, q.Folder)
}

// outputView is the response of calls that return the output of git.
type outputView struct {
	Output    string `json:"output" doc:"output of git"`
	Truncated bool   `json:"truncated,omitempty"`
}

func outputReply(p result) rest.Reply {
	return rest.Reply{Body: outputView{p.out + p.err, p.truncated}}
}

type cloneBody struct {
	Repo        string `json:"repo" doc:"an address, or owner/name for GitHub" example:"https://github.com/acme/app"`
	Branch      string `json:"branch,omitempty"`
	Folder      string `json:"folder,omitempty" doc:"target directory, absolute or below /workspace/home; absent: a new directory with the name of the repository"`
	Depth       *int64 `json:"depth,omitempty" doc:"number of commits of history to fetch; absent: all" min:"1" max:"2147483647" example:"1"`
	GitHubToken string `json:"github_token,omitempty" doc:"becomes header rules of the box for github.com and api.github.com; never returned"`
}

func (b *cloneBody) args() ([]string, []policy.HeaderRule, error) {
	var p problem.List
	from := remote(&p, "/repo", b.Repo)
	checkText(&p, "/branch", b.Branch, false)
	checkText(&p, "/folder", b.Folder, false)
	args := []string{"clone"}
	if b.Branch != "" {
		args = append(args, "--branch", b.Branch)
	}
	if b.Depth != nil {
		if *b.Depth < 1 || *b.Depth > 1<<31-1 {
			p.Add("/depth", "must be between 1 and 2147483647")
		}
		args = append(args, "--depth", strconv.FormatInt(*b.Depth, 10))
	}
	args = append(args, "--", from)
	if b.Folder != "" {
		args = append(args, b.Folder)
	}
	rules := spec.WithGitHub(&p, "/github_token", b.GitHubToken, nil)
	return args, rules, p.Err()
}

func (e *Endpoints) clone(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body cloneBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	args, rules, err := body.args()
	if err != nil {
		return rest.Reply{}, err
	}
	g, err := e.open(r, "")
	if err == nil && len(rules) > 0 {
		err = g.attach(rules)
	}
	if err != nil {
		return rest.Reply{}, err
	}
	p, err := g.must(args...)
	return outputReply(p), err
}

// attach adds header rules to the box, replacing existing rules for the same hosts. It retries while other
// clients change the rules concurrently.
func (g repository) attach(rules []policy.HeaderRule) error {
	for {
		now, err := g.e.Rules.Headers(g.ctx, g.box)
		if err != nil {
			return err
		}
		merged := policy.MergeHeaders(now.Rules, rules)
		if len(merged) > policy.MaxHeaderHosts {
			return problem.Invalid("/github_token", "the box has header rules for %d hosts, the most there can be", len(now.Rules))
		}
		_, err = g.e.Rules.SetHeaders(g.ctx, g.box, merged, &now.Version)
		if err == nil {
			g.e.History.Log(g.box, "info", "user", "attach headers of github.com and api.github.com set from a token")
		}
		if !errors.Is(err, api.ErrPrecondition) || g.ctx.Err() != nil {
			return err
		}
	}
}

type gitStatusView struct {
	Status    string `json:"status" example:" M README.md\n"`
	Truncated bool   `json:"truncated,omitempty"`
}

func (e *Endpoints) status(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	g, err := e.query(r)
	if err != nil {
		return rest.Reply{}, err
	}
	p, err := g.must("status", "--porcelain")
	return rest.Reply{Body: gitStatusView{p.out, p.truncated}}, err
}

type diffView struct {
	Diff      string `json:"diff"`
	Truncated bool   `json:"truncated,omitempty"`
}

func (e *Endpoints) diff(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	g, err := e.query(r)
	if err != nil {
		return rest.Reply{}, err
	}
	args := []string{"diff", "--no-color", "--no-ext-diff"}
	if head, err := g.git("rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		return rest.Reply{}, err
	} else if head.status == 0 { // otherwise there is no commit yet
		args = append(args, "HEAD")
	}
	p, err := g.must(args...)
	return rest.Reply{Body: diffView{p.out, p.truncated}}, err
}

type commitBody struct {
	Message     string `json:"message" example:"Fix the build"`
	AuthorName  string `json:"author_name,omitempty" doc:"absent: as configured"`
	AuthorEmail string `json:"author_email,omitempty" doc:"absent: as configured"`
	Folder      string `json:"folder,omitempty" doc:"the repository"`
}

type commitView struct {
	SHA     string `json:"sha" example:"d670460b4b4aece5915caf5c68d12f560a9fe3e4"`
	Message string `json:"message" example:"Fix the build"`
}

func (b *commitBody) check() error {
	var p problem.List
	if strings.TrimSpace(b.Message) == "" {
		p.Add("/message", "is missing")
	}
	spec.Text(&p, "/message", b.Message, 64<<10, true)
	spec.Text(&p, "/author_name", b.AuthorName, 256, false)
	spec.Text(&p, "/author_email", b.AuthorEmail, 256, false)
	return p.Err()
}

func (e *Endpoints) commit(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body commitBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	if err := body.check(); err != nil {
		return rest.Reply{}, err
	}
	g, err := e.open(r, body.Folder)
	if err != nil {
		return rest.Reply{}, err
	}
	staged, err := g.git("diff", "--cached", "--quiet", "--no-ext-diff")
	if err == nil && staged.status == 0 {
		_, err = g.must("add", "--all")
	}
	if err != nil {
		return rest.Reply{}, err
	}
	// If only part of an identity is given, git completes it from its configuration.
	var args []string
	if body.AuthorName != "" {
		args = append(args, "-c", "user.name="+body.AuthorName)
	}
	if body.AuthorEmail != "" {
		args = append(args, "-c", "user.email="+body.AuthorEmail)
	}
	p, err := g.git(append(args, "commit", "--quiet", "--message="+body.Message)...)
	if err == nil && p.status != 0 {
		err = p.failure("git commit")
	}
	if err != nil {
		return rest.Reply{}, err
	}
	made, err := g.must("log", "-1", "--format=%H%n%B")
	sha, message, _ := strings.Cut(made.out, "\n")
	return rest.Reply{Body: commitView{sha, strings.TrimSpace(message)}}, err
}

type branchBody struct {
	Branch string `json:"branch,omitempty" example:"topic"`
	Folder string `json:"folder,omitempty" doc:"the repository"`
}

// branch parses a body with a branch.
func (e *Endpoints) branch(w http.ResponseWriter, r *http.Request, required bool) (repository, string, error) {
	var body branchBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return repository{}, "", err
	}
	var p problem.List
	checkText(&p, "/branch", body.Branch, required)
	if err := p.Err(); err != nil {
		return repository{}, "", err
	}
	g, err := e.open(r, body.Folder)
	return g, body.Branch, err
}

// push pushes the branch with the given name. If it does not exist, the checked-out commit is pushed under that name.
func (e *Endpoints) push(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	g, branch, err := e.branch(w, r, false)
	if err != nil {
		return rest.Reply{}, err
	}
	what := "HEAD"
	if branch != "" {
		is, err := g.git("rev-parse", "--verify", "--quiet", "refs/heads/"+branch)
		if err != nil {
			return rest.Reply{}, err
		}
		if what = "HEAD:refs/heads/" + branch; is.status == 0 {
			what = "refs/heads/" + branch
		}
	}
	p, err := g.must("push", "--set-upstream", "origin", "--", what)
	return outputReply(p), err
}

func (e *Endpoints) checkout(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	g, branch, err := e.branch(w, r, true)
	if err != nil {
		return rest.Reply{}, err
	}
	p, err := g.must("checkout", branch, "--")
	return outputReply(p), err
}

type gitExecBody struct {
	Args   []string `json:"args" doc:"the arguments of git" min:"1" example:"[\"log\",\"-3\"]"`
	Folder string   `json:"folder,omitempty" doc:"the repository"`
}

type gitExecView struct {
	Output    string `json:"output" doc:"standard output; standard error if it is empty and git failed"`
	Error     string `json:"error,omitempty" doc:"standard error"`
	ExitCode  int    `json:"exit_code"`
	Truncated bool   `json:"truncated,omitempty"`
}

// exec handles POST exec. The caller chooses all arguments, including options; the endpoint gives no more access than
// exec of the box.
func (e *Endpoints) exec(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body gitExecBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if len(body.Args) == 0 {
		p.Add("/args", `must name a command of git, such as ["log", "-3"]`)
	}
	size := 0
	for i, arg := range body.Args {
		if size += len(arg) + api.ArgumentCost; strings.ContainsRune(arg, 0) || len(arg) > api.MaxArgument {
			p.Add("/args/"+strconv.Itoa(i), "must be at most %d bytes without NUL", api.MaxArgument)
		}
	}
	if size > api.MaxArguments {
		p.Add("/args", "need %d bytes; the limit is %d", size, api.MaxArguments)
	}
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	g, err := e.open(r, body.Folder)
	if err != nil {
		return rest.Reply{}, err
	}
	got, err := g.run(nil, append([]string{"git"}, body.Args...)...)
	view := gitExecView{got.out, got.err, got.status, got.truncated}
	if view.Output == "" && view.ExitCode != 0 {
		view.Output = view.Error
	}
	return rest.Reply{Body: view}, err
}

type identityBody struct {
	Name  string `json:"git_user_name,omitempty" example:"Ann"`
	Email string `json:"git_user_email,omitempty" example:"ann@example.com"`
}

type identityView struct {
	Name  string `json:"git_user_name" example:"Ann"`
	Email string `json:"git_user_email" example:"ann@example.com"`
}

func (e *Endpoints) putIdentity(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body identityBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body == (identityBody{}) {
		p.Add("", "give git_user_name, git_user_email, or both")
	}
	spec.Text(&p, "/git_user_name", body.Name, 256, false)
	spec.Text(&p, "/git_user_email", body.Email, 256, false)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return rest.Reply{}, err
	}
	name, email, err := e.Host.SetGitIdentity(r.Context(), box.ID, body.Name, body.Email)
	return rest.Reply{Body: identityView{name, email}}, err
}
