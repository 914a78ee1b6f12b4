package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/internal/lazyregexp"
)

// Limits of the MCP servers of a box.
const (
	MaxServers = 32
	MaxFields  = 32 // header fields of a server
	maxArgs    = 64
	maxArg     = 4096
	maxAll     = 256 << 10 // bytes of all servers, which are stored with the box
)

var (
	serverName  = lazyregexp.New(`^[A-Za-z0-9_-]{1,64}$`)
	packageName = lazyregexp.New(`^(@[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(@[A-Za-z0-9^~*][A-Za-z0-9._+^~*-]{0,63})?$`)
)

// CheckServers checks the MCP servers at /mcp_servers. Their header fields are checked by [Keys.Set].
func CheckServers(p *problem.List, servers []api.MCPServer) {
	if len(servers) > MaxServers {
		p.Add("/mcp_servers", "at most %d servers", MaxServers)
		return
	}
	if n := sizeOf(servers); n > maxAll {
		p.Add("/mcp_servers", "they have %d bytes; the limit is %d", n, maxAll)
		return
	}
	for i, s := range servers {
		at := "/mcp_servers/" + strconv.Itoa(i)
		if !serverName.MatchString(s.Name) {
			p.Add(at+"/name", "must be 1 to 64 letters, digits, '_' or '-'")
		}
		if slices.ContainsFunc(servers[:i], func(o api.MCPServer) bool { return o.Name == s.Name }) {
			p.Add(at+"/name", "this name is given twice")
		}
		checkSource(p, at, s)
		if len(s.Args) > maxArgs {
			p.Add(at+"/args", "at most %d arguments", maxArgs)
		}
		for j, arg := range s.Args {
			if len(arg) > maxArg || strings.ContainsFunc(arg, isControl) {
				p.Add(at+"/args/"+strconv.Itoa(j), "must be at most %d bytes without control characters", maxArg)
			}
		}
	}
}

// sizeOf returns the number of bytes of the texts of servers.
func sizeOf(servers []api.MCPServer) int {
	size := 0
	for _, s := range servers {
		size += len(s.Name) + len(s.Source) + len(s.PackageOrURL)
		for _, text := range slices.Concat(s.Args, s.HeaderNames) {
			size += len(text)
		}
	}
	return size
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func checkSource(p *problem.List, at string, s api.MCPServer) {
	switch s.Source {
	case "npm":
		if !packageName.MatchString(s.PackageOrURL) {
			p.Add(at+"/package_or_url", "must be the name of an npm package, such as @scope/name or name@1.2.3")
		}
		if len(s.HeaderNames) > 0 {
			p.Add(at+"/headers", "are for a server with a url")
		}
	case "url":
		checkServerURL(p, at+"/package_or_url", s.PackageOrURL)
		if len(s.Args) > 0 {
			p.Add(at+"/args", "are for a server from npm")
		}
		switch u, err := url.Parse(s.PackageOrURL); {
		case len(s.HeaderNames) > MaxFields:
			p.Add(at+"/headers", "at most %d headers", MaxFields)
		case len(s.HeaderNames) > 0 && err == nil && u.Scheme != "https":
			p.Add(at+"/headers", "need an https URL, since they are only set in requests over TLS")
		}
	default:
		p.Add(at+"/source", "must be npm or url")
	}
}

func checkServerURL(p *problem.List, at, text string) {
	u, err := url.Parse(text)
	switch {
	case err != nil || len(text) > maxURL || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		p.Add(at, "must be a URL of at most %d bytes", maxURL)
	case u.Scheme != "https" && u.Scheme != "http":
		p.Add(at, "must begin with https:// or http://")
	case u.User != nil:
		p.Add(at, "must not contain a user or a password; give a header")
	case u.Hostname() == "" || u.Opaque != "" || strings.Contains(u.Hostname(), "*"):
		p.Add(at, "must name a host")
	}
}

// File is a file in the home directory of a box.
type File struct {
	Path string // relative, without ".."
	Data []byte
}

// Files returns the configuration of MCP servers for the harnesses: the file of the hosted product, and one each of Claude Code,
// Codex and opencode. Header fields have [Placeholder] as value. The servers have passed [CheckServers].
func Files(servers []api.MCPServer) ([]File, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	claude, opencode := map[string]any{}, map[string]any{}
	for _, s := range servers {
		claude[s.Name], opencode[s.Name] = claudeServer(s), opencodeServer(s)
	}
	common, err := encode(map[string]any{"mcpServers": claude})
	if err != nil {
		return nil, err
	}
	other, err := encode(map[string]any{"$schema": "https://opencode.ai/config.json", "mcp": opencode})
	if err != nil {
		return nil, err
	}
	return []File{
		{".box-internal/mcp-config.json", common},
		{".claude.json", common},
		{".codex/config.toml", codexServers(servers)},
		{".config/opencode/opencode.json", other},
	}, nil
}

func encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}

// fieldsOf returns the header fields of a server, with placeholders.
func fieldsOf(s api.MCPServer) map[string]string {
	fields := map[string]string{}
	for _, name := range s.HeaderNames {
		fields[name] = Placeholder
	}
	return fields
}

// commandOf starts a server from npm.
func commandOf(s api.MCPServer) []string {
	return append([]string{"npx", "-y", s.PackageOrURL}, s.Args...)
}

func claudeServer(s api.MCPServer) map[string]any {
	if s.Source == "npm" {
		command := commandOf(s)
		return map[string]any{"type": "stdio", "command": command[0], "args": command[1:]}
	}
	kind := "http"
	if u, err := url.Parse(s.PackageOrURL); err == nil && strings.HasSuffix(u.Path, "/sse") {
		kind = "sse"
	}
	server := map[string]any{"type": kind, "url": s.PackageOrURL}
	if len(s.HeaderNames) > 0 {
		server["headers"] = fieldsOf(s)
	}
	return server
}

func opencodeServer(s api.MCPServer) map[string]any {
	if s.Source == "npm" {
		return map[string]any{"type": "local", "command": commandOf(s), "enabled": true}
	}
	server := map[string]any{"type": "remote", "url": s.PackageOrURL, "enabled": true}
	if len(s.HeaderNames) > 0 {
		server["headers"] = fieldsOf(s)
	}
	return server
}

// codexServers writes TOML. A string of JSON without control characters is a string of TOML too, and an array of such strings
// an array.
func codexServers(servers []api.MCPServer) []byte {
	var out bytes.Buffer
	quote := func(v any) string {
		data, _ := json.Marshal(v) // strings and slices of strings always have an encoding
		return string(data)
	}
	for _, s := range servers {
		fmt.Fprintf(&out, "[mcp_servers.%s]\n", quote(s.Name))
		if s.Source == "npm" {
			command := commandOf(s)
			fmt.Fprintf(&out, "command = %s\nargs = %s\n\n", quote(command[0]), quote(command[1:]))
			continue
		}
		fmt.Fprintf(&out, "url = %s\n", quote(s.PackageOrURL))
		if len(s.HeaderNames) > 0 {
			fmt.Fprintf(&out, "\n[mcp_servers.%s.http_headers]\n", quote(s.Name))
		}
		for _, name := range s.HeaderNames {
			fmt.Fprintf(&out, "%s = %s\n", quote(name), quote(Placeholder))
		}
		out.WriteString("\n")
	}
	return out.Bytes()
}
