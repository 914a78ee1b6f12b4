package image

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// builtVariable makes this test build in the given directory and print the modes of the result.
const builtVariable = "BOXGATE_IMAGE_TEST_BUILD"

// The service's umask removes permissions of others: an image that it builds is the same as one built by hand.
func TestAnImageDoesNotDependOnTheUmask(t *testing.T) {
	if dir := os.Getenv(builtVariable); dir != "" {
		fmt.Print(buildSmall(t, dir))
		return
	}
	nightly.Root(t) // it gives files to root
	t.Parallel()
	modes := map[string]string{}
	for _, umask := range []string{"0022", "0077"} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "umask "+umask+` && exec "$0" -test.run '^TestAnImageDoesNotDependOnTheUmask$'`, os.Args[0])
		cmd.Env = append(os.Environ(), builtVariable+"="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		modes[umask] = string(out)
	}
	if modes["0022"] != modes["0077"] || !strings.Contains(modes["0077"], "-rwxr-xr-x by/program") {
		t.Errorf("with 0022:\n%s\nwith 0077:\n%s", modes["0022"], modes["0077"])
	}
}

// buildSmall builds an image from an archive whose entries have no parents, and with parts of a Debian image: a program,
// npm's archive and our own files. It returns their modes.
func buildSmall(t *testing.T, dir string) string {
	t.Helper()
	tarball := filepath.Join(dir, "image.tar")
	if err := os.WriteFile(tarball, archive(t, file("usr/bin/sh", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Store{Dir: filepath.Join(dir, "images"), Names: map[string]string{"default": tarball}}
	if err := s.Ensure(t.Context(), "default", func(string) {}); err != nil {
		t.Fatal(err)
	}
	unpacked, err := s.Find("default")
	if err != nil {
		t.Fatal(err)
	}
	var node, npm bytes.Buffer
	for to, text := range map[*bytes.Buffer][]byte{
		&node: archive(t, file("package/LICENSE", ""), file("package/bin/node", "")),
		&npm:  archive(t, file("package/bin/npm-cli.js", "")),
	} {
		z := gzip.NewWriter(to)
		if _, err := z.Write(text); err != nil || z.Close() != nil {
			t.Fatal(err)
		}
	}
	debian := filepath.Join(dir, "debian")
	if err := os.Mkdir(debian, 0o755); err != nil {
		t.Fatal(err)
	}
	err = underImageUmask(func() error {
		const program = `mkdir -p by bin etc/apt usr/local/bin && touch by/program bin/ping && chmod +x by/program`
		if err := runWithProgress(t.Context(), func(string) {}, "sh", "-c", "cd "+debian+" && "+program); err != nil {
			return err
		}
		root, err := os.OpenRoot(debian)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := errors.Join(tidyDebian(root), configurePrograms(root), installProgram(t.Context(), root, &node)); err != nil {
			return err
		}
		return installNpm(t.Context(), root, &npm)
	})
	if err != nil {
		t.Fatal(err)
	}
	return modes(t, unpacked.Rootfs) + modes(t, filepath.Join(debian, "by"), filepath.Join(debian, "etc"), filepath.Join(debian, "usr"), filepath.Join(debian, "var"))
}

// modes lists the mode and path of everything below some directories.
func modes(t *testing.T, dirs ...string) string {
	t.Helper()
	var list strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			below, err := filepath.Rel(filepath.Dir(dir), path)
			fmt.Fprintln(&list, info.Mode(), below)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list.String()
}
