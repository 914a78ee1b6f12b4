// Package agents describes the built-in agents of boxes: the commands that run them, the servers of their models, and their
// files with MCP servers and skills. No key is in them: keys become header rules.
package agents

import (
	_ "embed"
	"maps"
	"net/url"
	"regexp"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/llm"
)

// The built-in harnesses, as the field agent of a box names them.
const (
	ClaudeCode = "claude-code"
	Codex      = "codex"
	OpenCode   = "opencode"
)

// Image is the image that contains the built-in harnesses.
const Image = "debian-agents"

// directory contains a program for each built-in harness, in [Image].
const directory = "/usr/lib/boxgate/agents/"

// Placeholder stands for a key in the variables and files of a box. The gateway replaces the whole header field.
const Placeholder = "set-by-the-gateway"

// IsBuiltIn reports whether a harness is built in.
func IsBuiltIn(harness string) bool {
	return harness == ClaudeCode || harness == Codex || harness == OpenCode
}

// IsHostedKey reports whether an agent_api_key is one of the SDK's words for a key that the service has: here, the operator's
// header rules for all boxes.
func IsHostedKey(key string) bool { return key == "UPSTASH_KEY" || key == "STORED_KEY" }

// HarnessOf returns the built-in harness for a model without one, as the SDK chooses it, or "".
func HarnessOf(model string) string {
	first, rest, _ := strings.Cut(model, "/")
	switch {
	case first == "openai", first == "vercel" && strings.HasPrefix(rest, "openai/"):
		return Codex
	case first == "anthropic", first == "openrouter", first == "vercel":
		return ClaudeCode
	case first == "opencode":
		return OpenCode
	}
	return ""
}

// RunnerOf returns the harness of a box: its custom one, else the built-in one, else nil.
func RunnerOf(h api.Hosted) *api.CustomRunner {
	if h.CustomRunner == nil && IsBuiltIn(h.Agent) {
		return &api.CustomRunner{Command: directory + h.Agent}
	}
	return h.CustomRunner
}

// provider is a service with models.
type provider struct {
	host      string
	fields    map[string]string // header field → prefix of the key in it
	variables []string          // opencode's variables for the key
	anthropic string            // base URL for Claude Code, if it is not the default one
	openai    string            // base URL for Codex, if it is not the default one
	meter     llm.Vendor        // of requests to the host; "": it has an API that is not metered
	others    []llm.PathMeter   // of requests below some paths, in place of meter
}

var (
	bearer  = map[string]string{"Authorization": "Bearer "}
	xAPIKey = map[string]string{"X-Api-Key": ""}
)

// providers are the services by the first part of a model's name. The SDK uses the first five.
var providers = map[string]provider{
	"anthropic": {host: "api.anthropic.com", fields: xAPIKey, variables: []string{"ANTHROPIC_API_KEY"}, meter: llm.Anthropic},
	"openai":    {host: "api.openai.com", fields: bearer, variables: []string{"OPENAI_API_KEY"}, meter: llm.OpenAI},
	"openrouter": {host: "openrouter.ai", fields: bearer, variables: []string{"OPENROUTER_API_KEY"}, anthropic: "https://openrouter.ai/api", openai: "https://openrouter.ai/api/v1",
		meter: llm.OpenAI, others: []llm.PathMeter{{Prefix: "/api/v1/messages", Vendor: llm.Anthropic}}},
	"vercel":   {host: "ai-gateway.vercel.sh", fields: bearer, variables: []string{"AI_GATEWAY_API_KEY"}, anthropic: "https://ai-gateway.vercel.sh", openai: "https://ai-gateway.vercel.sh/v1"},
	"opencode": {host: "opencode.ai", fields: map[string]string{"Authorization": "Bearer ", "X-Api-Key": "", "X-Goog-Api-Key": ""}, variables: []string{"OPENCODE_API_KEY"}, anthropic: "https://opencode.ai/zen", openai: "https://opencode.ai/zen/v1"},
	"google":   {host: "generativelanguage.googleapis.com", fields: map[string]string{"X-Goog-Api-Key": ""}, variables: []string{"GOOGLE_GENERATIVE_AI_API_KEY", "GEMINI_API_KEY"}, meter: llm.Google},
	"xai":      {host: "api.x.ai", fields: bearer, variables: []string{"XAI_API_KEY"}},
	"groq":     {host: "api.groq.com", fields: bearer, variables: []string{"GROQ_API_KEY"}},
	"mistral":  {host: "api.mistral.ai", fields: bearer, variables: []string{"MISTRAL_API_KEY"}},
	"deepseek": {host: "api.deepseek.com", fields: bearer, variables: []string{"DEEPSEEK_API_KEY"}},
}

// defaultProviders are the providers of models without one in their name.
var defaultProviders = map[string]string{ClaudeCode: "anthropic", Codex: "openai", OpenCode: "opencode"}

// bedrockHost matches the hosts of Amazon Bedrock, with their region.
var bedrockHost = regexp.MustCompile(`^bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com$`)

// bedrockRegion returns the region of a host of Amazon Bedrock, or "".
func bedrockRegion(host string) string {
	if m := bedrockHost.FindStringSubmatch(host); m != nil {
		return m[1]
	}
	return ""
}

// azureHosts are the suffixes of hosts that expect the key in the field api-key.
var azureHosts = []string{".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"}

// Target is the server of an agent's model.
type Target struct {
	Host      string            // host, with the port unless it is 443, for the pattern of a header rule
	Fields    map[string]string // header field → prefix of the key in it
	Meter     llm.Vendor        // how its requests are metered; "": not at all
	others    []llm.PathMeter   // how requests below some paths are metered instead
	BaseURL   string            // where the harness sends its requests; "": its default
	Variables map[string]string // for the environment of the box, without any key
}

// TargetOf returns the server of a box's model. ok is false if the box has no built-in harness, or if the provider of its
// model is unknown and it has no base URL.
func TargetOf(h api.Hosted) (t Target, ok bool) {
	if !IsBuiltIn(h.Agent) {
		return Target{}, false
	}
	p, known := providerOf(h.Agent, h.Model)
	if !known && h.BaseURL == "" {
		return Target{}, false
	}
	t = Target{Host: p.host, Fields: maps.Clone(p.fields), Variables: map[string]string{}}
	switch {
	case h.BaseURL != "":
		t.BaseURL = h.BaseURL
	case h.Agent == ClaudeCode:
		t.BaseURL = p.anthropic
	case h.Agent == Codex:
		t.BaseURL = p.openai
	}
	if h.BaseURL != "" {
		t.Host = HostOf(h.BaseURL)
		t.Fields = fieldsAt(t.Host, h.Agent, p.fields)
	}
	t.Meter, t.others = meterAt(t.Host)
	setVariables(&t, h.Agent, p.variables)
	return t, true
}

func providerOf(harness, model string) (provider, bool) {
	first, _, named := strings.Cut(model, "/")
	if !named {
		first = defaultProviders[harness]
	}
	p, known := providers[first]
	return p, known
}

// meterAt returns how requests to a host are metered. A host with several APIs, such as OpenRouter, serves every harness, and a box may
// change its harness without another rule.
func meterAt(host string) (llm.Vendor, []llm.PathMeter) {
	for _, p := range providers {
		if p.host == host {
			return p.meter, p.others
		}
	}
	if bedrockRegion(host) != "" {
		return llm.Bedrock, []llm.PathMeter{{Prefix: "/openai/", Vendor: llm.OpenAI}}
	}
	return "", nil
}

// fieldsAt returns the header fields for the key at a host of a base URL: of the provider with that host, else of Azure, else of
// the model's provider.
func fieldsAt(host, harness string, own map[string]string) map[string]string {
	for _, p := range providers {
		if p.host == host {
			return maps.Clone(p.fields)
		}
	}
	for _, suffix := range azureHosts {
		if strings.HasSuffix(host, suffix) {
			return map[string]string{"Api-Key": ""}
		}
	}
	if bedrockRegion(host) != "" {
		return maps.Clone(bearer)
	}
	switch {
	case len(own) > 0:
		return maps.Clone(own)
	case harness == ClaudeCode:
		return maps.Clone(xAPIKey)
	}
	return maps.Clone(bearer)
}

// setVariables sets the variables of a harness: the ones that it needs to start, to placeholders, and its base URL.
func setVariables(t *Target, harness string, own []string) {
	switch harness {
	case ClaudeCode:
		if region := bedrockRegion(t.Host); region != "" {
			maps.Copy(t.Variables, map[string]string{
				"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": region, "AWS_BEARER_TOKEN_BEDROCK": Placeholder, "ANTHROPIC_BEDROCK_BASE_URL": t.BaseURL,
			})
			return
		}
		if _, isBearer := t.Fields["Authorization"]; isBearer {
			t.Variables["ANTHROPIC_AUTH_TOKEN"] = Placeholder
		} else {
			t.Variables["ANTHROPIC_API_KEY"] = Placeholder
		}
		if t.BaseURL != "" {
			t.Variables["ANTHROPIC_BASE_URL"] = t.BaseURL
		}
	case Codex:
		t.Variables["OPENAI_API_KEY"], t.Variables["CODEX_API_KEY"] = Placeholder, Placeholder
		if t.BaseURL != "" {
			t.Variables["OPENAI_BASE_URL"] = t.BaseURL
		}
	case OpenCode:
		for _, name := range own {
			t.Variables[name] = Placeholder
		}
	}
}

// Variables returns the variables for the environment of a box's agent, or nil. They contain no key.
func Variables(h api.Hosted) map[string]string {
	t, _ := TargetOf(h)
	return t.Variables
}

// baseURLVariables are the harnesses' variables for a base URL.
var baseURLVariables = map[string]string{ClaudeCode: "ANTHROPIC_BASE_URL", Codex: "OPENAI_BASE_URL"}

// BaseURLIn returns the base URL that the variables of a box give its harness, with the variable's name; "" if there is none.
func BaseURLIn(harness string, variables map[string]string) (base, variable string) {
	variable = baseURLVariables[harness]
	if base = variables[variable]; base == "" {
		variable = ""
	}
	return base, variable
}

// maxURL bounds a base URL and the URL of an MCP server, in bytes.
const maxURL = 2048

// CheckURL checks a URL to whose host a header rule may belong: https, and a host with a name.
func CheckURL(p *problem.List, at, text string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURL || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		p.Add(at, "must be a URL of at most %d bytes", maxURL)
	case u.Scheme != "https":
		p.Add(at, "must begin with https://, since a key is only set in requests over TLS")
	case u.User != nil, u.Opaque != "", u.Fragment != "", u.RawQuery != "":
		p.Add(at, "must have neither a user, a query nor a fragment")
	case u.Hostname() == "" || strings.Contains(u.Hostname(), "*"):
		p.Add(at, "must name a host")
	}
}

// HostOf returns the host of a URL in the form of a header rule's pattern, or "".
func HostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	if port := u.Port(); port != "" && port != "443" {
		host += ":" + port
	}
	return host
}

// skillsScript installs skills as a program of the box: its repositories come from GitHub under the box's own network policy, and
// the gateway does not read them.
//
//go:embed skills.sh
var skillsScript string

// SkillsCommand returns the command that installs the missing skills of a list from GitHub, in the directories of Claude Code,
// opencode and Codex, and removes skills that it had installed and that are no longer in the list.
// It writes a line to standard error for each skill that could not be installed. The names are as in the field skills of a box.
func SkillsCommand(skills []string) []string {
	return append([]string{"sh", "-c", skillsScript, "skills"}, skills...)
}
