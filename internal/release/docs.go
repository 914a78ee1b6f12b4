package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"boxgate/cmd/gateway/command"
)

// makeDocs writes man pages and completions below out, without dates.
func makeDocs(out string) error {
	if err := os.MkdirAll(filepath.Join(out, "man"), 0o755); err != nil {
		return err
	}
	if err := writeManPages(filepath.Join(out, "man"), time.Time{}); err != nil {
		return err
	}
	for _, c := range completions {
		if err := c.write(out); err != nil {
			return err
		}
	}
	return nil
}

// writeManPages writes one page for each command into a directory.
func writeManPages(dir string, date time.Time) error {
	root := command.Tree()
	prepare(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: "boxgate", Manual: "boxgate", Date: &date}, dir)
}

// prepare removes from the pages the parts that change from day to day.
func prepare(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	for _, below := range cmd.Commands() {
		prepare(below)
	}
}

// completion is the completion script of one shell and its install path.
type completion struct {
	path     string // below the root of a file system
	generate func(*cobra.Command, *bytes.Buffer) error
}

var completions = []completion{
	{"usr/share/bash-completion/completions/gateway", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenBashCompletionV2(b, true) }},
	{"usr/share/zsh/vendor-completions/_gateway", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenZshCompletion(b) }},
	{"usr/share/fish/vendor_completions.d/gateway.fish", func(c *cobra.Command, b *bytes.Buffer) error { return c.GenFishCompletion(b, true) }},
}

func (c completion) write(root string) error {
	var text bytes.Buffer
	if err := c.generate(command.Tree(), &text); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	return write(root, c.path, text.Bytes(), 0o644)
}

// write writes a file below a directory, and the directories above it.
func write(root, path string, data []byte, mode os.FileMode) error {
	at := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(at, data, mode); err != nil {
		return err
	}
	return os.Chmod(at, mode) // independent of the umask
}
