package harness

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"boxgate/agents"
	"boxgate/api"
	"boxgate/api/history"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/schema"
	"boxgate/api/strict"
	"boxgate/quota"
)

// runBody is a run of an agent. If the files come from a disk, the SDK sends it as multipart/form-data.
type runBody struct {
	Prompt       string      `json:"prompt" doc:"passed to the harness as -p" example:"Fix the failing test"`
	Folder       string      `json:"folder,omitempty" doc:"working directory, absolute or below the home directory"`
	JSONSchema   freeForm    `json:"json_schema,omitempty" doc:"schema of the answer; passed to the harness in JSON_SCHEMA"`
	AgentOptions freeForm    `json:"agent_options,omitempty" doc:"passed to the harness in AGENT_OPTIONS"`
	Files        []fileBody  `json:"files,omitempty" doc:"passed to the harness as JSON in the file PROMPT_FILES_PATH; at most 10 of at most 10 MiB"`
	Webhook      webhookBody `json:"webhook,omitempty" doc:"respond immediately, and send the run to this URL when it has ended"`
	Timeout      *int64      `json:"timeout,omitempty" doc:"milliseconds after which the harness is killed" min:"1" max:"604800000"`
}

type fileBody struct {
	Data      string `json:"data" doc:"base64"`
	MediaType string `json:"media_type" example:"image/png"`
	Filename  string `json:"filename,omitempty"`
}

type webhookBody struct {
	URL     string            `json:"url" example:"https://hooks.example.com/run"`
	Headers map[string]string `json:"headers,omitempty"`
}

// The limits on the files of a prompt, the same as in the SDK.
const (
	maxFiles = 10
	maxFile  = 10 << 20 // bytes
)

// MaxBody is the size of the largest request for a run: all files in base64, and the rest. [BodyTime] is the time for such a body.
const (
	MaxBody  = maxFiles*maxFile/3*4 + 8<<20
	BodyTime = 5 * time.Minute
)

// The limits of a webhook, which is in memory until the end of its run.
const (
	maxURL     = 2048
	maxHeaders = 64
	maxHeader  = 8 << 10 // bytes of name and value
)

// freeForm is any JSON object.
type freeForm struct{ json.RawMessage }

// FreeForm marks the type as any object in the OpenAPI document.
func (freeForm) FreeForm() {}

// ErrNone refuses runs of agents in a box that has none.
var ErrNone = api.Errorf(api.ErrNotSupported, "the box has no agent: create it with one of the built-in agents (claude-code, codex, opencode) or with a custom harness, or run the agent's own command with exec or exec-stream")

// defaultModel is the model of a box without a configured model.
const defaultModel = "custom"

// job is a requested run.
type job struct {
	box     api.Box
	body    runBody
	request api.ExecRequest
	timeout time.Duration
	model   string
	schema  *schema.Schema // of the answer; nil: any text
	answer  history.Answer // after the run
	memory  int64          // bytes that the quota of its key counts for the body
	// metered is that of the parser.
	metered func() history.Metered
}

// read parses a request for a run.
func (e *Endpoints) read(w http.ResponseWriter, r *http.Request) (*job, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return nil, err
	}
	j := &job{box: box}
	if err := e.decode(w, r, &j.body); err != nil {
		return nil, err
	}
	j.memory = quota.ScopeOf(r.Context()).Used(quota.Memory)
	if err := j.body.check(); err != nil {
		return nil, err
	}
	if agents.RunnerOf(box.Hosted) == nil {
		return nil, ErrNone
	}
	if text := j.body.JSONSchema.RawMessage; len(text) > 0 {
		if j.schema, err = schema.Parse(text); err != nil {
			return nil, problem.Invalid("/json_schema", "%v", err)
		}
	}
	if j.body.Timeout != nil {
		j.timeout = time.Duration(*j.body.Timeout) * time.Millisecond
	}
	j.prepare("")
	return j, nil
}

// prepare completes a job whose box has a harness. model is the model of the run; "": the box's.
func (j *job) prepare(model string) {
	h := j.box.Hosted
	j.model = cmp.Or(model, h.Model, defaultModel)
	j.request = api.ExecRequest{Dir: j.body.dir(j.box), Env: j.body.environment()}
	if !agents.IsBuiltIn(h.Agent) {
		return
	}
	h.Model = j.model
	j.request.Env["BOXGATE_AGENT_MODEL"] = j.model
	if target, _ := agents.TargetOf(h); target.BaseURL != "" {
		j.request.Env["BOXGATE_AGENT_BASE_URL"] = target.BaseURL
	}
}

// command returns the command line of the protocol. session is the conversation to continue; "": a new one.
func (j *job) command(prompt, session string) []string {
	runner := agents.RunnerOf(j.box.Hosted)
	argv := append([]string{runner.Command}, runner.Args...)
	argv = append(argv, "-p", prompt, "--model", j.model, "--stream")
	if session != "" {
		argv = append(argv, "--session", session)
	}
	return argv
}

func (b *runBody) check() error {
	var p problem.List
	if b.Prompt == "" || strings.ContainsRune(b.Prompt, 0) || len(b.Prompt) > api.MaxArgument {
		p.Add("/prompt", "must have 1 to %d bytes, none of them NUL", api.MaxArgument)
	}
	if strings.ContainsRune(b.Folder, 0) || len(b.Folder) > 4095 {
		p.Add("/folder", "is not a path")
	}
	if b.Timeout != nil && (*b.Timeout < 1 || *b.Timeout > 7*24*3600*1000) {
		p.Add("/timeout", "must be between 1 and 604800000 milliseconds")
	}
	for at, value := range map[string]freeForm{"/json_schema": b.JSONSchema, "/agent_options": b.AgentOptions} {
		if n := len(value.RawMessage); n > api.MaxArgument-64 || n > 0 && value.RawMessage[0] != '{' {
			p.Add(at, "must be an object of at most %d bytes", api.MaxArgument-64)
		}
	}
	if len(b.Files) > maxFiles {
		p.Add("/files", "at most %d files", maxFiles)
	}
	for i, f := range b.Files[:min(len(b.Files), maxFiles)] {
		if base64.StdEncoding.DecodedLen(len(strings.TrimRight(f.Data, "="))) > maxFile {
			p.Add("/files/"+strconv.Itoa(i)+"/data", "is larger than %d bytes", maxFile)
		}
	}
	b.Webhook.check(&p)
	return p.Err()
}

func (h *webhookBody) check(p *problem.List) {
	if h.URL == "" && len(h.Headers) == 0 {
		return
	}
	if u, err := url.Parse(h.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		p.Add("/webhook/url", "must be an http or https URL without a password")
	}
	if len(h.URL) > maxURL {
		p.Add("/webhook/url", "must be at most %d bytes", maxURL)
	}
	if len(h.Headers) > maxHeaders {
		p.Add("/webhook/headers", "at most %d headers", maxHeaders)
		return
	}
	for name, value := range h.Headers {
		if len(name)+len(value) > maxHeader {
			p.Add("/webhook/headers", "each must have at most %d bytes", maxHeader)
		} else if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			p.Add("/webhook/headers/"+problem.EscapeKey(name), "is not a header")
		}
	}
}

func (b *runBody) dir(box api.Box) string {
	if path.IsAbs(b.Folder) {
		return path.Clean(b.Folder)
	}
	return path.Join(box.HomeDir(), b.Folder)
}

// environment returns the variables of the protocol.
func (b *runBody) environment() map[string]string {
	env := map[string]string{}
	if len(b.JSONSchema.RawMessage) > 0 {
		env["JSON_SCHEMA"] = string(b.JSONSchema.RawMessage)
	}
	if len(b.AgentOptions.RawMessage) > 0 {
		env["AGENT_OPTIONS"] = string(b.AgentOptions.RawMessage)
	}
	return env
}

// decode parses a body, either JSON or multipart.
func (e *Endpoints) decode(w http.ResponseWriter, r *http.Request, body *runBody) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "multipart/form-data" {
		return e.Bodies.Decode(w, r, body)
	}
	r.Body = io.NopCloser(e.Bodies.Whole(w, r))
	parts, err := r.MultipartReader()
	if err != nil {
		return problem.Refuse(http.StatusBadRequest, "the multipart body cannot be read")
	}
	fields, files := map[string]any{}, []fileBody{}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bodyError(err)
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return bodyError(err)
		}
		switch name := part.FormName(); name {
		case "files":
			files = append(files, fileOf(part.Header.Get("Content-Type"), part.FileName(), data))
		case "prompt", "folder":
			fields[name] = string(data)
		default:
			if !json.Valid(data) {
				return problem.Invalid("/"+problem.EscapeKey(problem.Clip(name)), "must be JSON")
			}
			fields[name] = json.RawMessage(data)
		}
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	body.Files = files // not by way of JSON, which would copy them twice
	return strict.Unmarshal(data, body)
}

// bodyError returns the error for a multipart body that could not be read.
func bodyError(err error) error {
	if exceeded, ok := errors.AsType[*quota.Error](err); ok {
		return exceeded
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem.Refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	return problem.Refuse(http.StatusBadRequest, "the multipart body is incomplete")
}
