package agents

import _ "embed"

// skillsScript installs skills as a program of the box: its repositories come from GitHub under the box's own network policy, and
// the gateway does not read them.
//
//go:embed skills.sh
var skillsScript string

// SkillsCommand returns the command that makes the skills in a box those of a list: missing ones are installed from GitHub, in
// the directories of Claude Code, opencode and Codex, and ones that it had installed and that are not in the list are removed.
// It writes a line to standard error for each skill that could not be installed. The names are as in the field skills of a box.
func SkillsCommand(skills []string) []string {
	return append([]string{"sh", "-c", skillsScript, "skills"}, skills...)
}
