package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

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
