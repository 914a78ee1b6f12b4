package git

import (
	"context"
	"io"
	"reflect"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/history"
	"boxgate/api/rest"
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
