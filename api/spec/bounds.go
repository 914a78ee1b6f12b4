package spec

import (
	"strconv"
	"strings"

	"boxgate/api"
	"boxgate/api/problem"
)

// Bounds of texts that are stored: each box, schedule and setting is read whole by many calls, and its text is held in memory. Documents
// (policies, header rules) have their own bounds in package policy. TestStoredTextIsBounded tries all fields of all bodies.
const (
	MaxLabels    = 5
	MaxMetadata  = 64 // entries
	MaxSkills    = 64
	MaxVariables = 4096
	MaxKey       = 4096 // bytes of a key that is stored without a use

	maxMetadataKey  = 128      // bytes
	maxMetadataText = 2048     // bytes of a value
	maxMetadataAll  = 16 << 10 // bytes of all keys and values of a box

	maxArgs    = 256       // of a command that is stored
	maxCommand = 256 << 10 // bytes of such a command
	maxText    = 256       // bytes of a line of text
	maxEntry   = 1024      // bytes of an entry of a policy
	maxURL     = 2048
)

// List checks the number of texts, the size of each, and the size of all.
func List(p *problem.List, at string, list []string, most, each, all int) {
	if len(list) > most {
		p.Add(at, "has %d entries; the limit is %d", len(list), most)
		return
	}
	sum := 0
	for i, text := range list {
		if len(text) > each || strings.ContainsRune(text, 0) {
			p.Add(at+"/"+strconv.Itoa(i), "must be at most %d bytes without NUL", each)
		}
		sum += len(text)
	}
	if sum > all {
		p.Add(at, "has %d bytes; the limit is %d", sum, all)
	}
}

// StoredCommand checks a command that is stored, in addition to [Command]: the arguments of a custom harness or a schedule.
func StoredCommand(p *problem.List, at string, args []string) {
	List(p, at, args, maxArgs, api.MaxArgument, maxCommand)
}

// Entries checks the entries of a policy by their size alone.
func Entries(p *problem.List, at string, entries []string, most int) {
	List(p, at, entries, most, maxEntry, most*maxEntry)
}

// Line checks a line of text.
func Line(p *problem.List, at, text string) { Text(p, at, text, maxText, false) }

// URL checks the size of a URL, which its user parses.
func URL(p *problem.List, at, text string) { Text(p, at, text, maxURL, false) }

// Metadata checks the texts that programs keep with a box.
func Metadata(p *problem.List, at string, entries map[string]string) {
	if len(entries) > MaxMetadata {
		p.Add(at, "has %d entries; the limit is %d", len(entries), MaxMetadata)
		return
	}
	sum := 0
	for key, value := range entries {
		one := at + "/" + problem.EscapeKey(problem.Clip(key))
		if key == "" {
			p.Add(one, "the key must not be empty")
		}
		Text(p, one, key, maxMetadataKey, false)
		Text(p, one, value, maxMetadataText, true)
		sum += len(key) + len(value)
	}
	if sum > maxMetadataAll {
		p.Add(at, "has %d bytes; the limit is %d", sum, maxMetadataAll)
	}
}

// Terminal checks and returns the size of a terminal.
func Terminal(p *problem.List, at string, rows, cols int64) api.TerminalSize {
	for name, n := range map[string]int64{"/rows": rows, "/cols": cols} {
		if n < 1 || n > api.MaxDimension {
			p.Add(at+name, "must be between 1 and %d", api.MaxDimension)
		}
	}
	return api.TerminalSize{Rows: uint16(rows), Cols: uint16(cols)}
}
