package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// architectures are the architectures of the binaries.
var architectures = []string{"amd64", "arm64"}

// program is a distributed program.
type program struct {
	name    string // also the name of its directory below cmd
	pkg     string // its package
	control string // path of its Debian package's control file
	service bool   // the package has a service, with its manual and configuration
}

// The demo has its own package: it contains an attacker's internet, which does not belong on a host with keys.
var (
	gateway  = program{name: "gateway", pkg: "boxgate", control: "dist/debian/control", service: true}
	demo     = program{name: "gateway-demo", pkg: "boxgate-demo", control: "dist/debian/demo"}
	programs = []program{gateway, demo}
)

// binary is a built program.
type binary struct {
	program
	path, arch string
	sum        [sha256.Size]byte
	info       *debug.BuildInfo
	date       time.Time // date of the commit
}

// makeBinaries builds the programs for each architecture, with their bills of materials.
func makeBinaries(ctx context.Context, out string, arches []string) error {
	for _, arch := range arches {
		for _, p := range programs {
			b, err := build(ctx, p, out, arch)
			if err != nil {
				return err
			}
			bill, err := b.bill()
			if err != nil {
				return err
			}
			if err := os.WriteFile(b.path+".cdx.json", bill, 0o644); err != nil {
				return err
			}
			artifacts = append(artifacts, b.path+".cdx.json")
		}
	}
	return nil
}

// artifacts are the paths of the files that this run has made.
var artifacts []string

// writeSums writes and prints the checksums of the artifacts.
func writeSums(out string) error {
	slices.Sort(artifacts)
	var sums bytes.Buffer
	for _, path := range artifacts {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), filepath.Base(path))
	}
	fmt.Print(sums.String())
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), sums.Bytes(), 0o644)
}

// buildArgs make a binary depend only on the sources and the toolchain: no local paths, no C compiler, no random build
// ID, and the commit as recorded by the go command.
var buildArgs = []string{"build", "-trimpath", "-buildvcs=true", "-tags=http2legacy", "-ldflags=-s -w -buildid=", "-mod=readonly"}

// profile is a CPU profile of the gateway under the benchmarks (`make profile`), with which the compiler optimizes releases
// (https://go.dev/doc/pgo). Compiling with it takes some minutes, so other builds do without. The go command reuses a
// package only in builds with the same profile.
const profile = "cmd/gateway/release.pgo"

// built maps the path of each binary of this run to its description.
var built = map[string]binary{}

// build builds a program for one architecture, at most once.
func build(ctx context.Context, p program, out, arch string) (b binary, err error) {
	path := filepath.Join(out, p.name+"-linux-"+arch)
	if b, ok := built[path]; ok {
		return b, nil
	}
	args, how := slices.Clone(buildArgs), ""
	if !unprofiled { // the demo, too: it shares all but its own packages with the gateway
		args, how = append(args, "-pgo="+profile), ", with a profile: some minutes"
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", path, "boxgate/cmd/"+p.name)...)
	// Settings of the builder's environment would change the binary.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	err = step("compiling "+p.name+" for "+arch+how, func() error {
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("building %s for %s: %w", p.name, arch, err)
		}
		b, err = read(p, path)
		return err
	})
	if err != nil {
		return binary{}, err
	}
	built[path], artifacts = b, append(artifacts, path)
	return b, nil
}

// read describes a built program.
func read(p program, path string) (binary, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return binary{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return binary{}, err
	}
	b := binary{program: p, path: path, sum: sha256.Sum256(data), info: info, arch: setting(info, "GOARCH")}
	if b.date, err = time.Parse(time.RFC3339, setting(info, "vcs.time")); err != nil {
		return binary{}, errors.New("the binary does not say which commit it is of: build it in a clone of the repository, with git installed")
	}
	return b, nil
}

// setting returns the value that the toolchain recorded for a key, or "".
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// debianVersion converts the module's Go version to a Debian version that sorts correctly: prereleases before their
// release, and commits between two releases by time.
func debianVersion(version string) string {
	version, dirty := strings.CutSuffix(strings.TrimPrefix(version, "v"), "+dirty")
	base, pre, ok := strings.Cut(version, "-")
	if ok {
		base += "~" + strings.ReplaceAll(pre, "-", ".")
	}
	if dirty {
		base += "+dirty"
	}
	return base
}

// The subset of CycloneDX 1.6 (ECMA-424) used in the bill of materials of a Go binary.
type (
	bill struct {
		Schema       string       `json:"$schema"`
		Format       string       `json:"bomFormat"`
		Spec         string       `json:"specVersion"`
		Serial       string       `json:"serialNumber"`
		Version      int          `json:"version"`
		Metadata     metadata     `json:"metadata"`
		Components   []component  `json:"components"`
		Dependencies []dependency `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Ref        string     `json:"bom-ref"`
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Scope      string     `json:"scope,omitempty"`
		PURL       string     `json:"purl"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	dependency struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

// bill returns the bill of materials of the binary as recorded by the linker. Modules of go.mod that are not linked in
// are not listed.
func (b binary) bill() ([]byte, error) {
	sum := b.sum
	// A version 8 UUID (RFC 9562) derived from the binary's checksum, so that equal binaries have equal bills.
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	whole := moduleComponent(&b.info.Main, "application")
	whole.Hashes = []hash{{"SHA-256", hex.EncodeToString(b.sum[:])}}
	for _, s := range b.info.Settings {
		whole.Properties = append(whole.Properties, property{"boxgate:build:" + s.Key, s.Value})
	}
	version := strings.TrimPrefix(b.info.GoVersion, "go")
	list := []component{{Ref: "pkg:golang/std@" + version, Type: "library", Name: "std", Version: version, Scope: "required", PURL: "pkg:golang/std@" + version}}
	for _, m := range b.info.Deps {
		list = append(list, moduleComponent(m, "library"))
	}
	needs := dependency{Ref: whole.Ref}
	for _, c := range list {
		needs.DependsOn = append(needs.DependsOn, c.Ref)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(bill{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", Spec: "1.6", Version: 1,
		Serial:   fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		Metadata: metadata{b.date.UTC().Format(time.RFC3339), whole}, Components: list, Dependencies: []dependency{needs},
	})
	return out.Bytes(), err
}

// moduleComponent describes a module. A replaced module is described by its replacement.
func moduleComponent(m *debug.Module, kind string) component {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
	c := component{Ref: purl, Type: kind, Name: m.Path, Version: m.Version, PURL: purl}
	if kind == "library" {
		c.Scope = "required"
	}
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
