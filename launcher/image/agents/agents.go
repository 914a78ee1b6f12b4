// Package agents has the adapters of coding agents, which the image debian-agents contains, and names the releases of
// their programs in npm's registry.
//
// An adapter is a program for Node. It runs the agent's own program and turns its output into the events of a custom
// harness (box-sse-v1). The agent "claude-code" of a box is thus a custom harness with the command Dir/claude-code.
package agents

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Dir is the directory of the adapters in the image, without the leading slash. Each has the name of its agent.
const Dir = "usr/lib/boxgate/agents"

//go:embed claude-code codex opencode protocol.js
var adapters embed.FS

// Program is the program of an agent for one architecture, as published in npm's registry.
type Program struct {
	Agent   string // name of the adapter
	Command string // name of the program in PATH
	Package string // in npm's registry
	Version string // of the package
	// Digest is the SHA-512 of the archive, in base64. It is empty if the version is not the pinned one: then the
	// registry's own is used, as npm does.
	Digest string
	File   string // the program, in the package
	Unused string // a folder of the package that is left out; may be empty
}

// pinned are the releases of this version of the gateway, by agent. The packages for each architecture are the ones that
// npm would install; none of them has dependencies or needs its install script.
var pinned = map[string]struct {
	version string
	amd64   Program
	arm64   Program
}{
	"claude-code": {
		version: "2.1.332",
		amd64: Program{
			Command: "claude", Package: "@anthropic-ai/claude-code-linux-x64", File: "claude",
			Digest: "f4JWhzwYutJIHScC7/dYOPX6s28tt7ZADhsOi8zwOHq5fFPEuUeChh2NMfinSg0GrUckYxaeebC4h0DqiKzLcw==",
		},
		arm64: Program{
			Command: "claude", Package: "@anthropic-ai/claude-code-linux-arm64", File: "claude",
			Digest: "BlHNEtK38KBPWU31F4lUSS9sHclCyfWbThT1CErvxxH8+XcljYLZlQwdyXBkTD62rw1TgfE1u1a+quMWS0NSJg==",
		},
	},
	// The version of Codex's package for an architecture has the architecture as a suffix, see versionOf.
	"codex": {
		version: "0.171.0",
		amd64: Program{
			Command: "codex", Package: "@openai/codex", File: "vendor/x86_64-unknown-linux-musl/bin/codex", Unused: "vendor/x86_64-unknown-linux-musl/codex-resources/voice",
			Digest: "l66NZkQgdk2C3pbcfULDz42yEUB581MVA6I+Y43Wp4OIqEy73HCdmZ0GTjeAHY2ycuH4N00d9VsLrwT1jxshTw==",
		},
		arm64: Program{
			Command: "codex", Package: "@openai/codex", File: "vendor/aarch64-unknown-linux-musl/bin/codex", Unused: "vendor/aarch64-unknown-linux-musl/codex-resources/voice",
			Digest: "9z17t4bbUJ9UCIb49O4PoA+ki+45q3rd8nZ8PeH6sYnlKkBld/Xpo/OS3h3Ti954+foshX4o7k5TCU8N7zzqQA==",
		},
	},
	// The build named baseline also runs on processors without AVX2.
	"opencode": {
		version: "1.18.33",
		amd64: Program{
			Command: "opencode", Package: "opencode-linux-x64-baseline", File: "bin/opencode",
			Digest: "1KQGBiiDDeL/VHHbHkOvvFo8Jr97WT5+C1tear+p7IcDTnXgVHXqIjU4O4jM4mHQzykTP2i884FCnW5LDa+zCA==",
		},
		arm64: Program{Command: "opencode", Package: "opencode-linux-arm64", File: "bin/opencode"},
	},
}

// Names returns the agents, sorted.
func Names() []string { return slices.Sorted(maps.Keys(pinned)) }

var validVersion = regexp.MustCompile(`^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(-[0-9A-Za-z.-]{1,64})?$`)

// Check returns what is wrong with versions by agent, which replace the pinned ones.
func Check(versions map[string]string) error {
	for _, agent := range slices.Sorted(maps.Keys(versions)) {
		if _, known := pinned[agent]; !known {
			return fmt.Errorf("there is no agent %q; use %s", agent, strings.Join(Names(), ", "))
		}
		if !validVersion.MatchString(versions[agent]) {
			return fmt.Errorf("%s: %q is not an exact version such as %s", agent, versions[agent], pinned[agent].version)
		}
	}
	return nil
}

// Programs returns the programs for this machine's architecture, by agent. The given versions replace the pinned ones.
func Programs(versions map[string]string) ([]Program, error) {
	if err := Check(versions); err != nil {
		return nil, err
	}
	var list []Program
	for _, agent := range Names() {
		release := pinned[agent]
		p, version := release.amd64, release.version
		switch runtime.GOARCH {
		case "amd64":
		case "arm64":
			p = release.arm64
		default:
			return nil, errors.New("the agents have no programs for " + runtime.GOARCH)
		}
		if other := versions[agent]; other != "" && other != version {
			p.Digest, version = "", other
		}
		p.Agent, p.Version = agent, versionOf(agent, version)
		list = append(list, p)
	}
	return list, nil
}

// versionOf returns the version of an agent's package for this architecture.
func versionOf(agent, version string) string {
	if agent == "codex" {
		return version + map[string]string{"amd64": "-linux-x64", "arm64": "-linux-arm64"}[runtime.GOARCH]
	}
	return version
}

// Archive returns the path of the program's archive in a registry.
func (p Program) Archive() string {
	return p.Package + "/-/" + path.Base(p.Package) + "-" + p.Version + ".tgz"
}

// Document returns the path of the package's document in a registry, for [DigestIn].
func (p Program) Document() string { return p.Package + "/" + p.Version }

// DigestIn returns the digest of the archive as the document of a package names it.
func DigestIn(document []byte) (string, error) {
	var d struct {
		Dist struct {
			Integrity string `json:"integrity"`
		} `json:"dist"`
	}
	err := json.Unmarshal(document, &d)
	digest, ok := strings.CutPrefix(d.Dist.Integrity, "sha512-")
	if err != nil || !ok {
		return "", errors.New("the registry does not name the SHA-512 of the archive")
	}
	return digest, nil
}

// Key identifies the contents of the image: the adapters and the versions of the programs.
func Key(versions map[string]string) string {
	sum := sha256.New()
	for _, agent := range Names() {
		fmt.Fprintf(sum, "%s %s %s\n", agent, pinned[agent].version, versions[agent])
	}
	for _, file := range files() {
		content, _ := adapters.ReadFile(file) // files of the program cannot fail
		fmt.Fprintf(sum, "%s %d\n%s", file, len(content), content)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

// files returns the embedded files.
func files() (list []string) {
	entries, _ := fs.ReadDir(adapters, ".")
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Install writes the adapters into a root file system.
func Install(root *os.Root) error {
	if err := root.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	for _, name := range files() {
		content, err := adapters.ReadFile(name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o755)
		if path.Ext(name) != "" {
			mode = 0o644
		}
		if err := root.WriteFile(Dir+"/"+name, content, mode); err != nil {
			return err
		}
	}
	return nil
}
