package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// makePackages builds a Debian package of each program for each architecture.
func makePackages(ctx context.Context, out string, arches []string) error {
	return makeEach(ctx, out, arches, "Debian", binary.packDeb)
}

// makeEach builds a package of the format for each program and architecture.
func makeEach(ctx context.Context, out string, arches []string, format string, pack func(binary, context.Context, string) (string, error)) error {
	for _, arch := range arches {
		for _, p := range programs {
			b, err := build(ctx, p, out, arch)
			if err != nil {
				return err
			}
			err = step(fmt.Sprintf("packing %s for %s (%s)", p.pkg, arch, format), func() error {
				path, err := pack(b, ctx, out)
				artifacts = append(artifacts, path)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// stage writes the files of the binary's package, in any format, into a new directory.
func (b binary) stage() (root string, err error) {
	if root, err = os.MkdirTemp("", "boxgate-stage-"); err != nil {
		return "", err
	}
	steps := []func(string) error{b.addFiles}
	if b.service {
		steps = append(steps, b.addService, b.addManual, b.addDocs)
	}
	for _, step := range steps {
		if err := step(root); err != nil {
			return "", errors.Join(err, os.RemoveAll(root))
		}
	}
	return root, nil
}

// packDeb builds the Debian package of a binary and returns its path.
func (b binary) packDeb(ctx context.Context, out string) (string, error) {
	root, err := b.stage()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	if b.service {
		if err := addControlFiles(root); err != nil {
			return "", err
		}
	}
	if err := b.addControl(root); err != nil {
		return "", err
	}
	path := filepath.Join(out, b.pkg+"_"+debianVersion(b.info.Main.Version)+"_"+b.arch+".deb")
	// Higher levels of xz take three times the processor time for 5% fewer bytes.
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--build", "--root-owner-group", "-Zxz", "-z2", root, path)
	cmd.Env = append(os.Environ(), b.epoch())
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("dpkg-deb, which makes packages on Debian and Ubuntu: %w: %s", err, said)
	}
	return path, nil
}

// epoch is the variable that makes packagers use the commit's time.
func (b binary) epoch() string { return "SOURCE_DATE_EPOCH=" + strconv.FormatInt(b.date.Unix(), 10) }

// shipped lists the repository files in the gateway's package and their destinations.
var shipped = []struct{ from, to string }{
	{"dist/boxgate.yaml", "etc/boxgate/boxgate.yaml"},
	{"dist/environment", "etc/boxgate/environment"},
	{"dist/grafana/boxgate.json", "usr/share/boxgate/grafana/boxgate.json"},
	{"dist/prometheus/alerts.yml", "usr/share/boxgate/prometheus/alerts.yml"},
}

// addFiles adds the program, its bill of materials and its license.
func (b binary) addFiles(root string) error {
	terms, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	bill, err := b.bill()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(b.path)
	if err != nil {
		return err
	}
	docs := "usr/share/doc/" + b.pkg + "/"
	return errors.Join(write(root, docs+"copyright", terms, 0o644), write(root, docs+b.pkg+".cdx.json", bill, 0o644),
		write(root, "usr/bin/"+b.name, program, 0o755))
}

// addService adds the unit, the configuration and the other files of the service.
func (b binary) addService(root string) error {
	for _, f := range shipped {
		data, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		if err := write(root, f.to, data, 0o644); err != nil {
			return err
		}
	}
	unit, err := os.ReadFile("dist/boxgate.service")
	if err != nil {
		return err
	}
	return write(root, "usr/lib/systemd/system/boxgate.service", bytes.ReplaceAll(unit, []byte("/usr/local/bin/"), []byte("/usr/bin/")), 0o644)
}

// addManual adds man pages and completions.
func (b binary) addManual(root string) error {
	for _, c := range completions {
		if err := c.write(root); err != nil {
			return err
		}
	}
	pages, err := os.MkdirTemp("", "boxgate-man-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(pages)
	if err := writeManPages(pages, b.date); err != nil {
		return err
	}
	list, err := os.ReadDir(pages)
	for _, page := range list {
		var text []byte
		if text, err = os.ReadFile(filepath.Join(pages, page.Name())); err != nil {
			break
		}
		if err = write(root, "usr/share/man/man8/"+page.Name()+".gz", zipped(text), 0o644); err != nil {
			break
		}
	}
	return err
}

// addDocs adds the documentation, with its links between pages.
func (b binary) addDocs(root string) error {
	to := "usr/share/doc/" + b.pkg
	for _, name := range []string{"README.md", "SECURITY.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := write(root, to+"/"+name, text, 0o644); err != nil {
			return err
		}
	}
	return filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !slices.Contains([]string{".md", ".svg"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return write(root, to+"/"+path, text, 0o644)
	})
}

// zipped compresses text without a name or a time.
func zipped(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // a valid level
	_, _ = w.Write(text)                                    // to memory
	_ = w.Close()
	return out.Bytes()
}

// addControlFiles adds the maintainer scripts and the list of configuration files.
func addControlFiles(root string) error {
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		text, err := os.ReadFile("dist/debian/" + script)
		if err != nil {
			return err
		}
		if err := write(root, "DEBIAN/"+script, text, 0o755); err != nil {
			return err
		}
	}
	var editable strings.Builder
	for _, f := range shipped {
		if strings.HasPrefix(f.to, "etc/") {
			editable.WriteString("/" + f.to + "\n")
		}
	}
	return write(root, "DEBIAN/conffiles", []byte(editable.String()), 0o644)
}

// addControl adds the control file. It must be called last because the file contains the installed size.
func (b binary) addControl(root string) error {
	control, err := os.ReadFile(b.control)
	if err != nil {
		return err
	}
	size, err := kibibytes(root)
	if err != nil {
		return err
	}
	text := os.Expand(string(control), func(name string) string {
		return map[string]string{"VERSION": debianVersion(b.info.Main.Version), "ARCHITECTURE": b.arch, "SIZE": strconv.FormatInt(size, 10)}[name]
	})
	if err := write(root, "DEBIAN/control", []byte(text), 0o644); err != nil {
		return err
	}
	return normalizeTree(root, b.date)
}

// kibibytes returns the size of all files below root as Debian counts it.
func kibibytes(root string) (n int64, err error) {
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() {
			n += (info.Size() + 1023) / 1024
		}
		return err
	})
	return n, err
}

// normalizeTree sets the modification time of everything below root to the commit's, and the mode of directories independent
// of the umask.
func normalizeTree(root string, date time.Time) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o755)
		}
		if err != nil {
			return err
		}
		return os.Chtimes(path, date, date)
	})
}
