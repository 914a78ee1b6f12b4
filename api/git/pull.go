package git

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/capture"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
)

type pullBody struct {
	Title  string `json:"title" example:"Fix the build"`
	Body   string `json:"body,omitempty"`
	Base   string `json:"base,omitempty" doc:"the branch to merge into; absent: the repository's default"`
	Folder string `json:"folder,omitempty" doc:"the repository"`
}

type pullView struct {
	URL    string `json:"url" example:"https://github.com/acme/app/pull/7"`
	Number int64  `json:"number" example:"7"`
	Title  string `json:"title"`
	Base   string `json:"base" example:"main"`
}

// gitHub is the address of GitHub's API.
const gitHub = "https://api.github.com"

// createPull handles POST create-pr. The request to GitHub is sent from the box, under its policy and with the credential
// that a header rule for api.github.com adds in transit.
func (e *Endpoints) createPull(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body pullBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if strings.TrimSpace(body.Title) == "" {
		p.Add("/title", "is missing")
	}
	spec.Text(&p, "/title", body.Title, 1024, false)
	spec.Text(&p, "/body", body.Body, 256<<10, true)
	checkText(&p, "/base", body.Base, false)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	g, err := e.open(r, body.Folder)
	if err != nil {
		return rest.Reply{}, err
	}
	path, head, err := g.pullTarget()
	if err == nil && body.Base == "" {
		var repo struct {
			Default string `json:"default_branch"`
		}
		err = g.callGitHub("GET", path, nil, &repo)
		body.Base = repo.Default
	}
	if err != nil {
		return rest.Reply{}, err
	}
	var made struct {
		URL    string `json:"html_url"`
		Number int64  `json:"number"`
		Title  string `json:"title"`
		Base   struct {
			Ref string `json:"ref"`
		} `json:"base"`
	}
	asked := map[string]string{"title": body.Title, "body": body.Body, "head": head, "base": body.Base}
	if err := g.callGitHub("POST", path+"/pulls", asked, &made); err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: pullView{made.URL, made.Number, made.Title, made.Base.Ref}}, nil
}

// pullTarget returns the path of the repository in GitHub's API, and the checked-out branch.
func (g repository) pullTarget() (path, head string, err error) {
	origin, err := g.must("remote", "get-url", "--", "origin")
	if err != nil {
		return "", "", err
	}
	path, ok := apiPath(strings.TrimSpace(origin.out))
	if !ok {
		return "", "", api.Errorf(api.ErrConflict, "the remote origin is not a repository of github.com: open the pull request by its own means")
	}
	branch, err := g.must("branch", "--show-current")
	head = strings.TrimSpace(branch.out)
	if err == nil && head == "" {
		err = api.Errorf(api.ErrConflict, "no branch is checked out; check one out and push it")
	}
	return path, head, err
}

// callGitHub sends a request to GitHub's API with the box's curl, ignoring the user's curl configuration. The path contains only
// characters that need no quoting.
func (g repository) callGitHub(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	args := []string{"curl", "--disable", "--silent", "--show-error", "--max-time", "120", "--request", method,
		"--header", "Accept: application/vnd.github+json", "--header", "X-GitHub-Api-Version: 2022-11-28", "--header", "User-Agent: boxgate",
		"--write-out", "\n%{http_code}"}
	if in != nil {
		args = append(args, "--header", "Content-Type: application/json", "--data-binary", "@-")
	}
	p, err := g.run(bytes.NewReader(body), append(args, "--", gitHub+path)...)
	if err != nil {
		return err
	}
	if p.status != 0 {
		return p.failure("curl to " + gitHub)
	}
	if p.truncated {
		return capture.ErrFull
	}
	end := strings.LastIndexByte(p.out, '\n')
	status, err := strconv.Atoi(p.out[end+1:])
	if err != nil || end < 0 {
		return api.Errorf(api.ErrConflict, "the box's curl gave no answer of GitHub")
	}
	return readAnswer(status, p.out[:end], out)
}

// readAnswer parses the response of GitHub, or of the server that the box resolves that name to.
func readAnswer(status int, text string, out any) error {
	if status >= http.StatusOK && status < http.StatusMultipleChoices {
		if json.Unmarshal([]byte(text), out) != nil {
			return api.Errorf(api.ErrConflict, "GitHub's answer cannot be read")
		}
		return nil
	}
	var refusal struct {
		Message string
		Errors  []struct{ Message string }
	}
	_ = json.Unmarshal([]byte(text), &refusal) // on failure there is no message
	message := problem.Clip(refusal.Message)
	for _, e := range refusal.Errors {
		message += "; " + problem.Clip(e.Message)
	}
	remedy := ""
	if status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound {
		remedy = "; does the box have a header rule with a token for api.github.com (github_token), and may the token do that?"
	}
	return problem.Refuse(http.StatusUnprocessableEntity, "GitHub answered %d: %s%s", status, message, remedy)
}
