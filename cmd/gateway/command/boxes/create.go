package boxes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// CreateFlags are the flags of `gateway box create` for the life of a box, its environment, git and its agent.
type CreateFlags struct {
	keepAlive, ephemeral, autoResume  bool
	initCommand, onEnd                string
	ttl                               time.Duration
	agent, model, key, base, harness  string
	harnessArgs, skills               []string
	servers                           string
	gitHubToken, gitUserName, gitMail string
	variables                         Variables
}

// Add defines the flags.
func (c *CreateFlags) Add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&c.keepAlive, "keep-alive", false, "never pause the box because it is idle, and start it with the gateway's host")
	f.StringVar(&c.initCommand, "init-command", "", "with --keep-alive: shell command that runs at each start, or @FILE")
	f.BoolVar(&c.ephemeral, "ephemeral", false, "remove the box after --ttl")
	cli.Duration(f, &c.ttl, "ttl", 0, "with --ephemeral: life of the box, such as 1h, at most 3d (default: 3d)")
	f.StringVar(&c.onEnd, "on-end", "", "what happens at the end of the box: delete or pause (default: delete)")
	f.BoolVar(&c.autoResume, "auto-resume", false, "with --on-end pause: any use resumes the box, not only a call of resume")
	f.StringVar(&c.agent, "agent", "", "harness of the agent: claude-code, codex, opencode, or custom with --harness")
	f.StringVar(&c.model, "model", "", "model of the agent, such as anthropic/claude-sonnet-4-5")
	f.StringVar(&c.key, "api-key-file", "", apiKeyHelp)
	f.StringVar(&c.base, "agent-base-url", "", "server of the model (default: the provider's own)")
	f.StringVar(&c.harness, "harness", "", "command of a custom harness in the box")
	f.StringArrayVar(&c.harnessArgs, "harness-arg", nil, "argument of --harness (may be repeated)")
	f.StringArrayVar(&c.skills, "skill", nil, "skill of the agent, OWNER/REPOSITORY or OWNER/REPOSITORY/SKILL of GitHub (may be repeated)")
	f.StringVar(&c.servers, "mcp-servers", "", "MCP servers of the agent: a JSON or YAML list of {name, package, args} or {name, url, headers}, @FILE, or -")
	f.StringVar(&c.gitHubToken, "github-token-file", "", "file with a token of GitHub, or - for standard input; it becomes header rules, and the box does not have it")
	f.StringVar(&c.gitUserName, "git-user-name", "", "name for commits in the box")
	f.StringVar(&c.gitMail, "git-user-email", "", "address for commits in the box")
	offer(cmd, "on-end", "delete", "pause")
	offer(cmd, "agent", append([]string{"custom"}, harnesses...)...)
	c.variables.Add(cmd, "for every command in the box")
	cli.MapFields(cmd, map[string]string{
		"/env_vars": "--env=", "/agent_api_key": "--api-key-file", "/github_token": "--github-token-file", "/custom_runner": "--harness",
		"/custom_runner/args": "--harness-arg", "/skills": "--skill",
	})
}

// Set adds the flags to the request for a new box.
func (c *CreateFlags) Set(cmd *cobra.Command, body map[string]any) error {
	if err := c.check(cmd); err != nil {
		return err
	}
	in := NewInput(cmd)
	key, err := in.Secret("--api-key-file", c.key)
	if err != nil {
		return err
	}
	token, err := in.Secret("--github-token-file", c.gitHubToken)
	if err != nil {
		return err
	}
	start, err := in.Text("--init-command", c.initCommand)
	if err != nil {
		return err
	}
	set(body, map[string]string{
		"init_command": start, "on_end": c.onEnd, "agent": c.agent, "model": c.model, "agent_api_key": key, "agent_base_url": c.base,
		"github_token": token, "git_user_name": c.gitUserName, "git_user_email": c.gitMail,
	})
	if c.keepAlive {
		body["keep_alive"] = true
	}
	if c.ephemeral {
		body["ephemeral"] = true
	}
	if c.autoResume {
		body["auto_resume"] = true
	}
	if c.ttl != 0 {
		body["ttl"] = int64((c.ttl + time.Second - 1) / time.Second)
	}
	if c.harness != "" {
		body["custom_runner"] = runner(c.harness, c.harnessArgs)
		set(body, map[string]string{"agent": "custom"})
	}
	if len(c.skills) > 0 {
		body["skills"] = c.skills
	}
	if err := c.setServers(in, body); err != nil {
		return err
	}
	vars, err := c.variables.Map(in)
	if vars != nil {
		body["env_vars"] = vars
	}
	return err
}

// check refuses flags that do not fit together.
func (c *CreateFlags) check(cmd *cobra.Command) error {
	switch {
	case c.ttl != 0 && !c.ephemeral:
		return cli.Usagef("--ttl needs --ephemeral")
	case cmd.Flags().Changed("ttl") && (c.ttl < time.Second || c.ttl > 3*24*time.Hour):
		return cli.Usagef("--ttl: must be between 1s and 3d")
	case c.initCommand != "" && !c.keepAlive:
		return cli.Usagef("--init-command needs --keep-alive")
	case len(c.harnessArgs) > 0 && c.harness == "":
		return cli.Usagef("--harness-arg needs --harness")
	case c.harness != "" && c.agent != "" && c.agent != "custom":
		return cli.Usagef("--harness is a custom harness; leave out --agent %s", c.agent)
	}
	return nil
}

// mcpServer is an MCP server in the form of the SDK, or of the API.
type mcpServer struct {
	Name         string            `json:"name"`
	Package      string            `json:"package,omitempty"`
	URL          string            `json:"url,omitempty"`
	Source       string            `json:"source,omitempty"`
	PackageOrURL string            `json:"package_or_url,omitempty"`
	Args         []string          `json:"args,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
}

// setServers adds the MCP servers.
func (c *CreateFlags) setServers(in *Input, body map[string]any) error {
	const form = "a list of MCP servers"
	data, err := in.Document("--mcp-servers", c.servers, form)
	if err != nil || data == nil {
		return err
	}
	var servers []mcpServer
	if err := strict(data, &servers); err != nil {
		return cli.Usagef("--mcp-servers: this is not %s: %v", form, err)
	}
	for i := range servers {
		s := &servers[i]
		if s.Package != "" && s.URL != "" {
			return cli.Usagef("--mcp-servers: %s has a package and a url; give one", word(s.Name))
		}
		switch {
		case s.Package != "":
			s.Source, s.PackageOrURL = "npm", s.Package
		case s.URL != "":
			s.Source, s.PackageOrURL = "url", s.URL
		}
		s.Package, s.URL = "", ""
	}
	body["mcp_servers"] = servers
	return nil
}

// strict decodes JSON and refuses unknown members, without quoting values.
func strict(data json.RawMessage, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s must not be a %s", word(wrong.Field), wrong.Value)
	}
	return err
}
