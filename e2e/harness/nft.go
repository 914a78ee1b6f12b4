package harness

import (
	"path"
	"strings"
)

// NFT runs one command in the gateway's namespace. HANDLE(chain, text) is replaced by the handle of the rule of the
// chain that contains the text. A word with a star is replaced by the name of the matching chain or set: the names of a
// plan change with each change of the plan.
func (w *World) NFT(command string) {
	w.T.Helper()
	command = w.nftNames(command)
	if head, rest, ok := strings.Cut(command, "HANDLE("); ok {
		args, tail, _ := strings.Cut(rest, ")")
		chain, text, _ := strings.Cut(args, ", ")
		listing, err := w.Net.Gateway().Run(w.T.Context(), "nft", "-a", "list", "chain", "inet", "boxgate", chain)
		if err != nil {
			w.T.Fatalf("%v: %s", err, listing)
		}
		for line := range strings.Lines(listing) {
			if _, handle, found := strings.Cut(line, "# handle "); found && strings.Contains(line, text) {
				command = head + strings.TrimSpace(handle) + tail
			}
		}
	}
	if out, err := w.Net.Gateway().Run(w.T.Context(), "nft", command); err != nil {
		w.T.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

// nftNames replaces words with stars by the shortest matching names in the gateway's table.
func (w *World) nftNames(command string) string {
	w.T.Helper()
	if !strings.Contains(command, "*") {
		return command
	}
	listing, err := w.Net.Gateway().Run(w.T.Context(), "nft", "list", "table", "inet", "boxgate")
	if err != nil {
		w.T.Fatalf("%v: %s", err, listing)
	}
	words := strings.Fields(command)
	for i, pattern := range words {
		found := ""
		for line := range strings.Lines(listing) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "chain" && f[0] != "set" {
				continue
			}
			if ok, _ := path.Match(pattern, f[1]); ok && (found == "" || len(f[1]) < len(found)) {
				found = f[1]
			}
		}
		if strings.Contains(pattern, "*") {
			words[i] = found
		}
	}
	return strings.Join(words, " ")
}
