// Package git serves git in boxes. It runs the box's own git, and curl for pull requests, as the box's user, so that a
// malicious repository or git configuration affects only the box. Names, branches and repositories from a caller never
// become options, and a GitHub token becomes header rules, never part of a command.
package git

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
	"boxgate/api/strict"
	"boxgate/policy"
)

// Host stores the identities for commits in boxes.
type Host interface {
	// SetGitIdentity changes the identity for commits in a box and returns the new one. "" leaves a value unchanged.
	SetGitIdentity(ctx context.Context, id policy.BoxID, name, email string) (nowName, nowEmail string, err error)
}

// Commands runs commands in boxes.
type Commands interface {
	// Exec runs a command to its end and copies its output as it arrives. The two writers are safe for concurrent use and
	// block only while the API's client does. After a writer has failed, the rest of its stream is discarded, at a
	// limited rate per box. If ctx ends, the command is killed and ctx's error returned. A command that ran is not an
	// error, whatever its exit code.
	Exec(ctx context.Context, id policy.BoxID, req api.ExecRequest, stdout, stderr io.Writer) (api.ExecResult, error)
}

// Rules manages the header rules of boxes. Errors are as in package api.
type Rules interface {
	// Headers returns the box's own header rules.
	Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error)
	// SetHeaders replaces the box's own header rules, with ifMatch as in SetPolicy.
	SetHeaders(ctx context.Context, id policy.BoxID, rules []policy.HeaderRule, ifMatch *uint64) (api.HeaderState, error)
}

// Endpoints serves git in boxes.
type Endpoints struct {
	Boxes    rest.Finder
	Host     Host
	Commands Commands
	Rules    Rules
	History  *history.History
	Bodies   strict.Bodies
	// MaxOutput is the maximum number of bytes of git's output in a response.
	MaxOutput int
	// Output bounds the memory of all responses together.
	Output *capture.Budget
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	identity := rest.Route{Method: "PUT", Request: reflect.TypeFor[identityBody](), Example: `{"git_user_name":"Ann","git_user_email":"ann@example.com"}`, Response: reflect.TypeFor[identityView](), Handle: e.putIdentity}
	current, former := identity, identity
	current.Path, current.ID, current.Summary = "/v2/box/{id}/config/git", "setGitIdentity", "Change the identity for commits in a box"
	former.Path, former.ID, former.Summary = "/v2/box/{id}/git-config", "setGitIdentityAsBefore", "The same as config/git, for versions of the SDK before 0.7.2"
	return []rest.Route{
		current, former,
		{Method: "POST", Path: "/v2/box/{id}/git/clone", ID: "gitClone", Summary: "Clone a repository", Request: reflect.TypeFor[cloneBody](), Example: `{"repo":"https://github.com/acme/app","branch":"main","folder":"app","depth":1}`, Response: reflect.TypeFor[outputView](), Handle: e.clone},
		{Method: "GET", Path: "/v2/box/{id}/git/status", ID: "gitStatus", Summary: "The output of git status --porcelain", Query: reflect.TypeFor[folderQuery](), Response: reflect.TypeFor[gitStatusView](), Handle: e.status},
		{Method: "GET", Path: "/v2/box/{id}/git/diff", ID: "gitDiff", Summary: "The differences from the last commit, staged or not", Query: reflect.TypeFor[folderQuery](), Response: reflect.TypeFor[diffView](), Handle: e.diff},
		{Method: "POST", Path: "/v2/box/{id}/git/commit", ID: "gitCommit", Summary: "Commit the staged changes, or all changes if none are staged", Request: reflect.TypeFor[commitBody](), Example: `{"message":"Fix the build","folder":"app"}`, Response: reflect.TypeFor[commitView](), Handle: e.commit},
		{Method: "POST", Path: "/v2/box/{id}/git/push", ID: "gitPush", Summary: "Push a branch to origin, by default the checked-out one", Request: reflect.TypeFor[branchBody](), Example: `{"branch":"topic","folder":"app"}`, Response: reflect.TypeFor[outputView](), Handle: e.push},
		{Method: "POST", Path: "/v2/box/{id}/git/checkout", ID: "gitCheckout", Summary: "Check out a branch", Request: reflect.TypeFor[branchBody](), Example: `{"branch":"topic","folder":"app"}`, Response: reflect.TypeFor[outputView](), Handle: e.checkout},
		{Method: "POST", Path: "/v2/box/{id}/git/exec", ID: "gitExec", Summary: "Run any git command", Request: reflect.TypeFor[gitExecBody](), Example: `{"args":["log","--oneline","-3"],"folder":"app"}`, Response: reflect.TypeFor[gitExecView](), Handle: e.exec},
		{Method: "POST", Path: "/v2/box/{id}/git/create-pr", ID: "gitCreatePullRequest", Summary: "Open a pull request on GitHub for the checked-out branch", Request: reflect.TypeFor[pullBody](), Example: `{"title":"Fix the build","body":"It failed on Mondays.","base":"main","folder":"app"}`, Response: reflect.TypeFor[pullView](), Handle: e.createPull},
	}
}

type folderQuery struct {
	Folder string `json:"folder,omitempty" doc:"directory of the repository, absolute or below the home directory; absent: the home directory" example:"app"`
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
	Folder      string `json:"folder,omitempty" doc:"target directory, absolute or below the home directory; absent: a new directory with the name of the repository"`
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

// repository is a directory in a box, to run commands in.
type repository struct {
	e   *Endpoints
	ctx context.Context
	box policy.BoxID
	dir string
	// answer holds the output of the last command.
	answer *capture.Answer
}

// open returns a folder of the box in the path of a request.
func (e *Endpoints) open(r *http.Request, folder string) (repository, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return repository{}, err
	}
	if strings.ContainsRune(folder, 0) || len(folder) > 4095 {
		return repository{}, problem.Invalid("/folder", "is not a path")
	}
	dir := path.Clean(folder)
	if !path.IsAbs(dir) {
		dir = path.Join(box.HomeDir(), dir)
	}
	answer, err := e.Output.Open(r.Context(), box.ID)
	return repository{e, r.Context(), box.ID, dir, answer}, err
}

// result is the output of a command, up to a limit, with its exit code.
type result struct {
	out, err  string
	status    int
	truncated bool
}

// run runs a program in the directory.
func (g repository) run(stdin io.Reader, args ...string) (result, error) {
	g.answer.Clear()
	out, errs := g.answer.Output(g.e.MaxOutput), g.answer.Output(g.e.MaxOutput)
	res, err := g.e.Commands.Exec(g.ctx, g.box, api.ExecRequest{Command: args, Dir: g.dir, Stdin: stdin}, out, errs)
	if err == nil && res.ExitCode == notStarted {
		err = g.mustExist()
	}
	return result{out.Text(), errs.Text(), res.ExitCode, out.Cut() || errs.Cut()}, err
}

// notStarted is the exit code of a program that could not be started because it or its directory does not exist.
const notStarted = 127

// mustExist returns an error if the directory does not exist in the box.
func (g repository) mustExist() error {
	there := api.ExecRequest{Command: []string{"test", "-d", g.dir}, Dir: "/"}
	res, err := g.e.Commands.Exec(g.ctx, g.box, there, io.Discard, io.Discard)
	if err == nil && res.ExitCode == 1 {
		err = problem.Invalid("/folder", "the box has no directory %q", problem.Clip(g.dir))
	}
	return err
}

// git runs git. The protocol ext, which runs a command, is disabled whatever the box's configuration allows.
func (g repository) git(args ...string) (result, error) {
	return g.run(nil, append([]string{"git", "-c", "protocol.ext.allow=never", "-c", "core.quotePath=false"}, args...)...)
}

// must runs git and returns an error if it fails.
func (g repository) must(args ...string) (result, error) {
	p, err := g.git(args...)
	if err == nil && p.status != 0 {
		err = p.failure("git " + args[0])
	}
	return p, err
}

// failure returns the error for a failed command, with the beginning and the end of its output: where git prints its usage, the
// first line has the reason.
func (p result) failure(what string) error {
	text := strings.TrimSpace(p.err)
	if text == "" {
		text = strings.TrimSpace(p.out)
	}
	if first, last := 500, 1500; len(text) > first+last {
		text = strings.ToValidUTF8(text[:first]+"…"+text[len(text)-last:], "")
	}
	if p.status == notStarted {
		return api.Errorf(api.ErrConflict, "%s cannot be run, the image of the box may lack it: %s", what, text)
	}
	return problem.Refuse(http.StatusUnprocessableEntity, "%s failed with exit code %d: %s", what, p.status, text)
}

var (
	// helper matches git's syntax for a remote helper, a program to run: ext::sh -c …
	helper = regexp.MustCompile(`^[A-Za-z0-9+.-]*::`)
	// onGitHub matches a GitHub repository without an address: owner/name.
	onGitHub = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	// hostAndPath matches an address without a scheme: github.com/acme/app.
	hostAndPath = regexp.MustCompile(`^[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+/[^:]+$`)
)

// checkText rejects text that a program would parse as an option, or that no program accepts.
func checkText(p *problem.List, at, text string, required bool) {
	switch {
	case text == "" && required:
		p.Add(at, "is missing")
	case strings.HasPrefix(text, "-"):
		p.Add(at, "must not begin with -")
	case len(text) > 4096, strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		p.Add(at, "must be at most 4096 bytes without control characters")
	}
}

// remote returns the address of a repository: as given, or on GitHub for owner/name.
func remote(p *problem.List, at, repo string) string {
	checkText(p, at, repo, true)
	if helper.MatchString(repo) {
		p.Add(at, "names a program that git would run; give an https:// address, or owner/name for GitHub")
	}
	switch {
	case onGitHub.MatchString(repo):
		return "https://github.com/" + repo
	case hostAndPath.MatchString(repo):
		return "https://" + repo
	}
	if hasCredential(repo) {
		p.Add(at, "has a credential, which git would keep in the box; give it as github_token, or as a header rule of the host")
	}
	return repo
}

// hasCredential reports whether git would find a user before the host of an HTTP address, even if net/url does not.
func hasCredential(repo string) bool {
	scheme, rest, ok := strings.Cut(repo, "://")
	if scheme = strings.ToLower(scheme); !ok || scheme != "https" && scheme != "http" {
		return false
	}
	host, _, _ := strings.Cut(rest, "/")
	return strings.Contains(host, "@")
}

// apiPath returns the path of a repository in GitHub's API, and whether it is on GitHub.
func apiPath(origin string) (string, bool) {
	rest, ok := strings.CutPrefix(origin, "https://github.com/")
	if !ok {
		rest, ok = strings.CutPrefix(origin, "git@github.com:")
	}
	if !ok {
		rest, ok = strings.CutPrefix(origin, "ssh://git@github.com/")
	}
	rest = strings.TrimSuffix(strings.TrimSuffix(rest, "/"), ".git")
	return "/repos/" + rest, ok && onGitHub.MatchString(rest)
}
