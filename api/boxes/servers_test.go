package boxes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"boxgate/agents"
)

// TestAttackManyServers: a request with more MCP servers, headers or arguments than a box may have is refused before work is done
// for each of them.
func TestAttackManyServers(t *testing.T) {
	const most = 100_000 // in a body of 8 MiB
	var many, long []mcpBody
	for i := range most {
		many = append(many, mcpBody{
			Name: fmt.Sprint("n", i), Source: "url", PackageOrURL: fmt.Sprintf("https://h%d.example/", i), Headers: map[string]string{"x": "v"},
		})
	}
	for i := range agents.MaxServers {
		args := strings.Split(strings.Repeat(strings.Repeat("x", 4000)+" ", 64), " ")[:64]
		long = append(long, mcpBody{Name: fmt.Sprint("n", i), Source: "npm", PackageOrURL: "server", Args: args})
	}
	headers := map[string]string{}
	for i := range 4 * most {
		headers[fmt.Sprint("x", i)] = "v"
	}
	for name, c := range map[string]struct {
		servers []mcpBody
		problem string
	}{
		"servers":   {many, "at most 32 servers"},
		"headers":   {[]mcpBody{{Name: "a", Source: "url", PackageOrURL: "https://h.example/", Headers: headers}}, "the limit is 262144"},
		"arguments": {long, "the limit is 262144"},
	} {
		began := time.Now()
		_, err := (&createBody{Model: "anthropic/claude-sonnet-4-5", MCPServers: c.servers}).request(nil)
		if err == nil || !strings.Contains(fmt.Sprint(err), c.problem) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s take %v", name, took)
		}
	}
}
