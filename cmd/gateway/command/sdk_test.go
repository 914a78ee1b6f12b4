package command

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"boxgate/cmd/gateway/command/cli"
)

// commandInDocs matches a command in the tables of the SDK's methods and options in docs/commands.md.
var commandInDocs = regexp.MustCompile("`gateway ([a-z][a-z -]*)`")

// TestCommandsOfTheSDK: each row of the tables of the SDK's methods and options in docs/commands.md names a command or a flag that exists, or
// says why there is none. That the tables have each method and option is tested in e2e/sdk, where the SDK is installed.
func TestCommandsOfTheSDK(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, found := strings.Cut(string(text), "\n## Methods of the SDK\n")
	rows, named := 0, map[string]bool{}
	for line := range strings.Lines(tables) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 2 || !strings.Contains(cells[0], "`") {
			continue
		}
		rows++
		commands := commandInDocs.FindAllStringSubmatch(cells[1], -1)
		if why, none := strings.CutPrefix(strings.TrimSpace(cells[1]), "not a "); none == (len(commands) > 0) || none && !strings.Contains(why, ": ") {
			t.Errorf("no command and no reason, or both: %s", line)
		}
		for _, c := range commands {
			named[c[1]] = true
			if err := existing(strings.Fields(c[1])); err != "" {
				t.Errorf("gateway %s: %s", c[1], err)
			}
		}
	}
	if !found || rows < 80 || len(named) < 90 {
		t.Errorf("only %d rows and %d commands were found", rows, len(named))
	}
	for _, wrong := range []string{"box creat", "box create --nam", "box", "box runs run"} {
		if existing(strings.Fields(wrong)) == "" {
			t.Errorf("gateway %s exists", wrong)
		}
	}
}

// existing returns "" if a command with flags exists, or else what does not.
func existing(words []string) string {
	var path, flags []string
	for _, w := range words {
		if name, isFlag := strings.CutPrefix(w, "--"); isFlag {
			flags = append(flags, name)
		} else {
			path = append(path, w)
		}
	}
	root := newRootCommand(&cli.Options{})
	cmd, rest, err := root.Find(path)
	switch {
	case err != nil:
		return err.Error()
	case len(rest) > 0 || cmd.HasSubCommands() || cmd.Hidden || isUnder(cmd, "help"):
		return "there is no such command"
	}
	for _, name := range flags {
		if f := cmd.Flags().Lookup(name); f == nil && cmd.InheritedFlags().Lookup(name) == nil || f != nil && f.Hidden {
			return "it has no flag --" + name
		}
	}
	return ""
}

func isUnder(cmd *cobra.Command, name string) bool {
	return cmd != nil && (cmd.Name() == name || isUnder(cmd.Parent(), name))
}
