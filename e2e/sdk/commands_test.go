package sdk

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// ofClass matches the beginning of a class of the SDK's types.
	ofClass = regexp.MustCompile(`^export declare class (\w+)`)
	// ofMethod matches a method or a getter of a class, also one that is another's.
	ofMethod = regexp.MustCompile(`^    (?:static )?(?:async )?(?:get )?(\w+)(?:(?:<.*?>)?\(|: typeof )`)
	// ofIterator matches the method of an iterable class.
	ofIterator = regexp.MustCompile(`^    (\[Symbol\.\w+\])\(`)
	// ofGroup matches a member with methods.
	ofGroup = regexp.MustCompile(`^    readonly (\w+): \{$`)
	// ofOtherGroup matches a member that has the methods of another class.
	ofOtherGroup = regexp.MustCompile(`^    readonly (\w+): (\w+)\["(\w+)"\];$`)
	// inGroup matches a method of such a member.
	inGroup = regexp.MustCompile(`^        (\w+)(?:(?:<.*?>)?\(|: \()`)
	// ofInterface matches the beginning of an interface.
	ofInterface = regexp.MustCompile(`^export interface (\w+)`)
	// ofOption matches a member of an interface.
	ofOption = regexp.MustCompile(`^    (\w+)\??:`)
	// inRow matches a name in the tables of docs/commands.md.
	inRow = regexp.MustCompile("`(\\w+(?:\\.\\w+)+|\\w+\\[Symbol\\.\\w+\\])`")
)

// methodsOf returns the public methods and getters of the classes in the SDK's types: Box.create, Box.files.read.
func methodsOf(types string) map[string]bool {
	all := map[string]bool{}
	class, group := "", ""
	for line := range strings.Lines(types) {
		line = strings.TrimRight(line, "\n")
		if m := ofClass.FindStringSubmatch(line); m != nil {
			class = m[1]
		}
		switch {
		case line == "}":
			class, group = "", ""
		case class == "":
		case group != "" && strings.HasPrefix(line, "    };"):
			group = ""
		case group != "":
			if m := inGroup.FindStringSubmatch(line); m != nil {
				all[class+"."+group+"."+m[1]] = true
			}
		case ofGroup.MatchString(line):
			group = ofGroup.FindStringSubmatch(line)[1]
		case ofOtherGroup.MatchString(line):
			m := ofOtherGroup.FindStringSubmatch(line)
			for name := range all {
				if method, same := strings.CutPrefix(name, m[2]+"."+m[3]+"."); same {
					all[class+"."+m[1]+"."+method] = true
				}
			}
		case ofIterator.MatchString(line):
			all[class+ofIterator.FindStringSubmatch(line)[1]] = true
		default:
			if m := ofMethod.FindStringSubmatch(line); m != nil && m[1] != "constructor" && !strings.HasPrefix(m[1], "_") {
				all[class+"."+m[1]] = true
			}
		}
	}
	return all
}

// optionsOf returns the members of the interfaces for which takes holds: BoxConfig.name.
func optionsOf(types string, takes func(name string) bool) map[string]bool {
	all := map[string]bool{}
	of := ""
	for line := range strings.Lines(types) {
		if m := ofInterface.FindStringSubmatch(line); m != nil {
			of = m[1]
		}
		if strings.HasPrefix(line, "}") {
			of = ""
		}
		if m := ofOption.FindStringSubmatch(line); m != nil && of != "" && takes(of) {
			all[of+"."+m[1]] = true
		}
	}
	return all
}

// ownOptions are interfaces of options whose names lack the usual ending.
var ownOptions = []string{"CustomHarnessConfig", "WebhookConfig", "BoxConfig", "EphemeralBoxConfig", "UploadFileEntry"}

// options reports whether an interface has the options of a method. Options of a harness are passed on unchanged.
func options(name string) bool {
	return slices.Contains(ownOptions, name) || strings.HasSuffix(name, "Options") && !strings.HasSuffix(name, "AgentOptions")
}

// TestMethodsHaveCommands: the tables in docs/commands.md have each method of the SDK and each option, and nothing else. That their commands
// and flags exist is tested in cmd/gateway/command.
func TestMethodsHaveCommands(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newNode(t).Dir, "node_modules/@upstash/box/dist")
	read := func(name string) string {
		t.Helper()
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	_, tables, _ := strings.Cut(read("../../docs/commands.md"), "\n## Methods of the SDK\n")
	methods, flags, _ := strings.Cut(tables, "\n### Options of the SDK\n")
	// Fewer would mean that this test no longer reads the types.
	for _, c := range []struct {
		table string
		have  map[string]bool
		least int
	}{{methods, methodsOf(read(filepath.Join(dir, "client.d.ts"))), 100}, {flags, optionsOf(read(filepath.Join(dir, "types.d.ts")), options), 70}} {
		if len(c.have) < c.least {
			t.Errorf("the types have only %d: %v", len(c.have), c.have)
		}
		rows := map[string]bool{}
		for line := range strings.Lines(c.table) {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			for _, m := range inRow.FindAllStringSubmatch(first, -1) {
				if strings.HasPrefix(line, "|") && rows[m[1]] {
					t.Errorf("%s has two rows", m[1])
				}
				rows[m[1]] = rows[m[1]] || strings.HasPrefix(line, "|")
			}
		}
		for name := range c.have {
			if !rows[name] {
				t.Errorf("docs/commands.md has no row for %s", name)
			}
		}
		for name := range rows {
			if rows[name] && !c.have[name] {
				t.Errorf("docs/commands.md has a row for %s, which the SDK does not have", name)
			}
		}
	}
}
